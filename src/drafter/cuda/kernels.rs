//! The loaded kernels, and how one is launched.
//!
//! Names are those of `kernels/*.cu`; which arguments a kernel takes is written there, and each is launched
//! from one place of the forward pass.

use std::ffi::{CString, c_void};
use std::sync::Arc;

use cudarc::driver::result;
use cudarc::driver::sys::{self, CUfunction_attribute as Attribute};
use zerocopy::{Immutable, IntoBytes};

use super::device::{BackendUnavailable, Device, DeviceError, Doing};
use super::image::{self, Chosen};
use super::linears::Kind;
use super::measure::Marks;
use super::products::Product;

/// Arguments of one launch at most.
const ARGS_MAX: usize = 20;
/// Threads of a block of every product kernel.
const PRODUCT_THREADS: u32 = 256;

/// One kernel of a loaded module.
#[derive(Clone, Copy)]
pub(super) struct Function(pub(super) sys::CUfunction);

macro_rules! kernels {
    ($($source:literal: $($name:ident $threads:literal),*;)*) => {
        /// Every kernel; of the products there is one a version, width and codebook.
        pub(super) struct Kernels {
            device: Arc<Device>,
            modules: Vec<sys::CUmodule>,
            /// Architecture of the images in use.
            pub(super) arch: String,
            products: Vec<(Product, Kind, Function)>,
            /// Times of launches, while somebody measures.
            pub(super) marks: Marks,
            $($(pub(super) $name: (Function, u32),)*)*
        }

        impl Kernels {
            /// Loads the images that fit the device; with `ptx` those that the driver compiles.
            ///
            /// # Errors
            /// [`BackendUnavailable`] when none fits or the driver refuses one.
            pub(super) fn load(
                device: &Arc<Device>,
                ptx: bool,
            ) -> Result<Self, BackendUnavailable> {
                let Chosen { arch, images } = image::choose(device.facts.capability, ptx)?;
                let mut loader = Loader { modules: Vec::new(), arch: &arch };
                let loaded = (|| {
                    $(
                        let module = loader.module($source, &images)?;
                        $(let $name = (loader.function(module, stringify!($name))?, $threads);)*
                    )*
                    let mut products = Vec::new();
                    for product in Product::ALL {
                        let module = loader.module(product.source, &images)?;
                        for kind in Kind::all() {
                            products.push((product, kind, loader.product(module, product, kind)?));
                        }
                    }
                    Ok((products, $($($name,)*)*))
                })();
                let modules = loader.modules;
                match loaded {
                    Ok((products, $($($name,)*)*)) => {
                        let device = device.clone();
                        let marks = Marks::default();
                        Ok(Self { device, modules, arch, products, marks, $($($name,)*)* })
                    }
                    Err(error) => {
                        unload(&modules);
                        Err(error)
                    }
                }
            }

            /// Every kernel: its source, its name, and how it is launched.
            pub(super) fn all(&self) -> Vec<(&'static str, String, (Function, u32))> {
                let mut all = vec![
                    $($(($source, stringify!($name).to_owned(), self.$name),)*)*
                ];
                let product = |&(product, kind, function): &(Product, Kind, Function)| {
                    (product.source, product.kernel(kind), (function, PRODUCT_THREADS))
                };
                all.extend(self.products.iter().map(product));
                all
            }
        }
    };
}

kernels! {
    "exl3_rotate": exl3_rotate 128;
    "exl3_finish": exl3_finish_bf16 128, exl3_finish_post 128, exl3_finish_rotate 128,
        exl3_finish_f32 128, exl3_finish_logits 128, exl3_finish_swiglu 128;
    "norm": norm_rotate 256, kv_store 256;
    "attention": attention 256;
    "hyper": block_start 256, hc_mix 256, hc_input 256, hc_collapse 256;
    "moe": router_logits 256, route 256, moe_combine 128;
    "markov": markov_bias 256, markov_seed 256, markov_scan 256, markov_pick 256;
}

/// One argument of a kernel.
pub(super) enum Arg<'a> {
    /// A device address.
    At(u64),
    Word(u32),
    Float(f32),
    /// A structure by value.
    Record(&'a [u8]),
}

/// A structure passed by value.
pub(super) fn record<T: IntoBytes + Immutable>(value: &T) -> Arg<'_> {
    Arg::Record(value.as_bytes())
}

impl Kernels {
    /// The product kernel of a version and kind.
    pub(super) fn product(&self, product: Product, kind: Kind) -> (Function, u32) {
        let found = self.products.iter().find(|&&(p, k, _)| p == product && k == kind);
        let found = found.expect("layers of a kind without a kernel are refused when loaded");
        (found.2, PRODUCT_THREADS)
    }

    /// Puts one launch on the stream.
    ///
    /// # Safety
    /// Arguments have the number, sizes and meaning that the kernel's source declares, and the device
    /// addresses among them hold what it reads and have room for what it writes.
    pub(super) unsafe fn launch(
        &self,
        (function, threads): (Function, u32),
        grid: [usize; 3],
        shared: usize,
        args: &[Arg<'_>],
    ) -> Result<(), DeviceError> {
        let mut values = [0u64; ARGS_MAX];
        let mut pointers = [std::ptr::null_mut::<c_void>(); ARGS_MAX];
        for ((arg, value), pointer) in args.iter().zip(&mut values).zip(&mut pointers) {
            // A 32-bit value lies in the low half, where the driver reads it on little-endian hosts.
            *pointer = match arg {
                Arg::Record(bytes) => bytes.as_ptr().cast_mut().cast(),
                Arg::At(at) => put(value, *at),
                Arg::Word(word) => put(value, u64::from(*word)),
                Arg::Float(float) => put(value, u64::from(float.to_bits())),
            };
        }
        let grid = grid.map(super::records::word);
        let shared = super::records::word(shared);
        self.marks.around(&self.device, function, || {
            // SAFETY: the caller's promise; the pointers outlive the call, which copies what they point to.
            unsafe {
                result::launch_kernel(
                    function.0,
                    (grid[0], grid[1], grid[2]),
                    (threads, 1, 1),
                    shared,
                    self.device.stream(),
                    &mut pointers[..args.len()],
                )
            }
            .doing("launch a kernel")
        })
    }
}

fn put(place: &mut u64, value: u64) -> *mut c_void {
    *place = value;
    std::ptr::from_mut(place).cast()
}

impl Drop for Kernels {
    fn drop(&mut self) {
        let _ = self.device.bind();
        let _ = self.device.synchronize();
        unload(&self.modules);
    }
}

fn unload(modules: &[sys::CUmodule]) {
    for &module in modules {
        // SAFETY: loaded by the loader, unloaded once.
        let _ = unsafe { result::module::unload(module) };
    }
}

struct Loader<'a> {
    modules: Vec<sys::CUmodule>,
    arch: &'a str,
}

impl Loader<'_> {
    fn module(
        &mut self,
        source: &str,
        images: &[super::pack::Image],
    ) -> Result<sys::CUmodule, BackendUnavailable> {
        let image = images.iter().find(|image| image.source == source);
        let image = image.ok_or_else(|| self.refusal(source, "there is no such image"))?;
        // SAFETY: a cubin carries its own length, PTX ends in NUL.
        let loaded = unsafe { result::module::load_data(image.bytes.as_ptr().cast()) };
        let module = loaded.doing("load").map_err(|e| self.refusal(source, &e.reason))?;
        self.modules.push(module);
        Ok(module)
    }

    fn function(&self, module: sys::CUmodule, name: &str) -> Result<Function, BackendUnavailable> {
        let c_name = CString::new(name).expect("kernel names have no NUL");
        // SAFETY: the module stays loaded as long as its functions are used.
        let function = unsafe { result::module::get_function(module, c_name) };
        let function = function.doing("find").map_err(|e| self.refusal(name, &e.reason))?;
        // SAFETY: the function exists.
        let local = unsafe {
            result::function::get_function_attribute(
                function,
                Attribute::CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES,
            )
        };
        if let Ok(bytes @ 1..) = local {
            tracing::warn!(kernel = name, bytes, "the kernel spills registers and will be slow");
        }
        Ok(Function(function))
    }

    fn product(
        &self,
        module: sys::CUmodule,
        product: Product,
        kind: Kind,
    ) -> Result<Function, BackendUnavailable> {
        let name = product.kernel(kind);
        let function = self.function(module, &name)?;
        let most = i32::try_from(product.shared_max(kind)).expect("tens of kilobytes");
        // SAFETY: the function exists.
        unsafe {
            result::function::set_function_attribute(
                function.0,
                Attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
                most,
            )
        }
        .doing("reserve shared memory")
        .map_err(|e| self.refusal(&name, &e.reason))?;
        Ok(function)
    }

    fn refusal(&self, name: &str, reason: &str) -> BackendUnavailable {
        BackendUnavailable::new(
            format!("kernel {name} for {} cannot be loaded: {reason}", self.arch),
            "try DSPARK_KERNEL_IMAGE=ptx, or draft on the CPU with --backend cpu",
        )
    }
}
