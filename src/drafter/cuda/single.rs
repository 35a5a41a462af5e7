//! One quantised layer alone on a device: what checks of the product kernels run, on a card or emulated.

use std::sync::Arc;

use half::bf16;

use super::CudaError;
use super::device::{Device, DeviceError, DeviceMemory, probe};
use super::kernels::{Arg, Kernels};
use super::linears::{Group, LinearTable, Member, check, jobs};
use super::placement::{CHUNK_BYTES, Origins, Placement};
use super::products::Product;
use super::records::{CONTEXT_ROWS, word};
use crate::drafter::weights::Linear;
use crate::exl3::Exl3Linear;

/// A device with the kernels of a layer.
pub struct LayerCheck {
    kernels: Kernels,
    device: Arc<Device>,
}

impl LayerCheck {
    /// Opens device `ordinal` and loads the kernels.
    ///
    /// # Errors
    /// [`CudaError`] when the device cannot be used.
    pub fn new(ordinal: u32) -> Result<Self, CudaError> {
        Self::with_images(ordinal, false)
    }

    /// The same; with `ptx` the driver compiles the kernels itself.
    ///
    /// # Errors
    /// As above.
    pub fn with_images(ordinal: u32, ptx: bool) -> Result<Self, CudaError> {
        let device = Device::open(probe(ordinal)?)?;
        Ok(Self { kernels: Kernels::load(&device, ptx)?, device })
    }

    /// Architecture of the images in use.
    pub fn arch(&self) -> &str {
        &self.kernels.arch
    }

    /// `y` `[rows, out]` = `x` `[rows, in]` · W + bias, f32, for at most 512 rows: rotation, product and
    /// finishing as the backend runs them. `x` is rounded to bf16. `fill` is what memory holds before.
    ///
    /// # Errors
    /// [`CudaError`] for a layer of a width without a kernel, and when the device fails.
    ///
    /// # Panics
    /// If there are more rows than 512, or values than rows.
    pub fn forward(
        &self,
        layer: &Exl3Linear,
        x: &[f32],
        rows: usize,
        fill: u8,
    ) -> Result<Vec<f32>, CudaError> {
        let (inputs, outputs) = (layer.in_features(), layer.out_features());
        assert!(rows <= CONTEXT_ROWS && x.len() == rows * inputs, "rows of a single launch");
        let linear = Linear::Exl3(layer.clone());
        check("layer", &linear)?;
        let mut memory = DeviceMemory::new(self.device.clone());
        let mut table = LinearTable::default();
        let origins = Origins::memory([layer.packed().trellis]);
        let mut placement = Placement::new(&mut memory, 0, &origins);
        let index = table.add(&linear, 1, &mut placement)?;
        placement.done().upload(&self.device, CHUNK_BYTES)?;
        let y = memory.take(4 * CONTEXT_ROWS * outputs, fill)?;
        let member = Member { layer: index, x_col: 0, y, y_pitch: outputs };
        let jobs = jobs(&table, &[member], CONTEXT_ROWS);
        let input: Vec<u8> = x.iter().flat_map(|&v| bf16::from_f32(v).to_le_bytes()).collect();
        let [table_at, jobs_at, rows_at, x_at] =
            [64, 40, 4, input.len()].map(|n| memory.take(n, fill));
        let (table_at, jobs_at, rows_at, x_at) = (table_at?, jobs_at?, rows_at?, x_at?);
        let rotated = memory.take(2 * CONTEXT_ROWS * inputs, fill)?;
        let sums = memory.take(4 * CONTEXT_ROWS * table.sums(index), fill)?;
        let group = Group::new(&table, jobs_at, 1, [index].into_iter());
        let count = word(rows).to_le_bytes();
        {
            use zerocopy::IntoBytes;
            // SAFETY: each place was made for what goes there, and `run` waits before the sources go.
            unsafe {
                self.device.upload(table_at, table.records.as_bytes())?;
                self.device.upload(jobs_at, jobs.as_bytes())?;
                self.device.upload(rows_at, &count)?;
                self.device.upload(x_at, &input)?;
            }
        }
        let mut bytes = vec![0; 4 * rows * outputs];
        let at = [table_at, jobs_at, rows_at, x_at, rotated, sums];
        let done = self.launch(&group, rows, at).and_then(|()| {
            // SAFETY: `y` holds that many bytes; nobody reads them before the wait.
            unsafe { self.device.download(&mut bytes, y) }
        });
        self.device.synchronize()?;
        done?;
        Ok(bytes.as_chunks().0.iter().map(|&b| f32::from_le_bytes(b)).collect())
    }

    fn launch(
        &self,
        group: &Group,
        rows: usize,
        [table, jobs, count, x, rotated, sums]: [u64; 6],
    ) -> Result<(), DeviceError> {
        let k = &self.kernels;
        let (kind, product) = (group.kinds[0], Product::of(rows));
        let tiles = product.tiles(rows);
        let columns = [group.out_features.div_ceil(512), rows, 1];
        // SAFETY: arguments as the sources declare them, over memory taken for these sizes.
        unsafe {
            k.launch(
                k.exl3_rotate,
                [group.in_features.div_ceil(512), rows, 1],
                0,
                &[
                    Arg::At(table),
                    Arg::At(jobs),
                    Arg::At(count),
                    Arg::At(x),
                    Arg::Word(word(group.in_features)),
                    Arg::At(0),
                    Arg::At(0),
                    Arg::Word(0),
                    Arg::Word(0),
                    Arg::At(rotated),
                ],
            )?;
            k.launch(
                k.product(product, kind),
                [group.out_features / 128 * tiles, group.splits, 1],
                product.shared(kind, rows),
                &[
                    Arg::At(table),
                    Arg::At(jobs),
                    Arg::At(count),
                    Arg::At(rotated),
                    Arg::At(sums),
                    Arg::Word(word(tiles)),
                ],
            )?;
            k.launch(
                k.exl3_finish_f32,
                columns,
                0,
                &[Arg::At(table), Arg::At(jobs), Arg::At(count), Arg::At(sums)],
            )
        }
    }
}
