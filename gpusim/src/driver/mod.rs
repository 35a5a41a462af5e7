//! The driver API: the `extern "C"` functions that a program finds in `libcuda.so.1`.
//!
//! Only what a program through cudarc uses is here; a missing function shows as a missing symbol.
//! Calls take one lock, so the emulated driver is as thread-safe as the real one and slower.

/// Defines exported driver functions. Each runs in the frame of [`state::call`] with the state
/// under the name given, and answers success when its body is `Ok`.
macro_rules! driver_functions {
    ($needs:expr, |$state:ident| $(
        $(#[$meta:meta])*
        fn $name:ident($($argument:ident: $ty:ty),* $(,)?) $body:block
    )*) => {$(
        #[doc = concat!("`", stringify!($name), "` of the CUDA driver API.")]
        ///
        /// # Safety
        /// Pointers must be valid as the driver API demands.
        $(#[$meta])*
        #[unsafe(no_mangle)]
        #[allow(non_snake_case, clippy::missing_safety_doc)]
        pub(crate) unsafe extern "C" fn $name($($argument: $ty),*) -> std::ffi::c_int {
            $crate::driver::state::call(stringify!($name), $needs, |$state| {
                let _ = &$state;
                // SAFETY: pointers are valid as the caller of the API function promises.
                #[allow(unused_unsafe)]
                unsafe { $body }
            })
        }
    )*};
}

mod absent;
mod codes;
mod context;
pub(crate) mod device;
mod error;
mod event;
mod graph;
mod launch;
mod management;
mod memory;
mod module;
mod occupancy;
mod settings;
mod state;
mod stream;
mod work;
