//! What every part of the forward pass stands on: addresses, groups of layers, and the launches they share.

use std::ops::ControlFlow;
use std::sync::Arc;

use half::bf16;

use super::device::{Device, DeviceError};
use super::kernels::{Arg, Kernels};
use super::linears::{Group, Member, jobs};
use super::memory::Buffers;
use super::meta::{BlockMeta, ContextMeta, MetaLayout};
use super::products::Product;
use super::records::{CONTEXT_ROWS, JobRecord, ROWS_MAX, word};
use super::resident::ResidentAt;
use super::shape::Shape;
use super::upload::WeightsAt;
use crate::drafter::stage::{Stage, StageObserver};

/// Rows of a launch: as many as there are, and as many as its grid is made for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rows {
    /// Address of the count.
    pub(super) at: u64,
    /// Rows the grid covers.
    pub(super) bound: usize,
}

/// Layers that run in one launch, of one draft layer.
pub(super) struct LayerGroups {
    pub(super) q_kv: Group,
    pub(super) q_b: Group,
    pub(super) o_a: Group,
    pub(super) o_b: Group,
    /// Gates and ups of the experts, jobs written by the router.
    pub(super) gate_up: Group,
    pub(super) down: Group,
}

/// All groups.
pub(super) struct Groups {
    pub(super) main_proj: Group,
    pub(super) context_kv: Group,
    pub(super) head: Group,
    pub(super) layers: Vec<LayerGroups>,
}

/// The forward pass on a device: nothing in it changes after the start but device memory.
pub(super) struct Engine {
    pub(super) device: Arc<Device>,
    pub(super) kernels: Kernels,
    pub(super) shape: Shape,
    pub(super) layout: MetaLayout,
    pub(super) weights: WeightsAt,
    pub(super) buffers: Buffers,
    pub(super) groups: Groups,
    pub(super) resident: ResidentAt,
    pub(super) context_meta: ContextMeta,
    pub(super) block_meta: BlockMeta,
    /// Whether logits are rounded to bf16.
    pub(super) round_logits: bool,
    /// Whether the Markov step leaves out rows that cannot win.
    pub(super) prune: bool,
}

/// What one launch of the whole forward pass covers: context rows, drafts over the windows then, or both.
/// Sizes are buckets; how many there really are is in the uploaded piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Pass {
    /// Context rows: a multiple of eight up to 32, or 128, or 512.
    pub(super) context: usize,
    /// Drafts.
    pub(super) drafts: usize,
    /// Groups of eight head rows.
    pub(super) head: usize,
}

/// The bucket of one slot's window: what a prompt or a resync of one request brings.
const WINDOW: usize = 128;

impl Pass {
    /// The bucket of `rows` context rows: groups of eight cost what they multiply, and so many that the weights
    /// are no longer what is waited for share one.
    ///
    /// # Panics
    /// If there are more than a pass takes.
    pub(super) fn context_bucket(rows: usize) -> usize {
        assert!(rows <= CONTEXT_ROWS, "{rows} context rows in a pass");
        if rows <= ROWS_MAX {
            rows.next_multiple_of(8)
        } else if rows <= WINDOW {
            WINDOW
        } else {
            CONTEXT_ROWS
        }
    }

    /// All buckets of context rows, none among them.
    pub(super) fn context_buckets() -> impl Iterator<Item = usize> + Clone {
        (0..=ROWS_MAX).step_by(8).chain([WINDOW, CONTEXT_ROWS])
    }
}

/// Why a pass ended early.
#[derive(Debug)]
pub(super) enum Halt {
    /// The device failed.
    Device(DeviceError),
    /// The observer had seen enough.
    Stopped,
}

impl From<DeviceError> for Halt {
    fn from(error: DeviceError) -> Self {
        Self::Device(error)
    }
}

/// Shows stages to an observer, if there is one.
pub(super) struct Watch<'a>(pub(super) Option<&'a mut dyn StageObserver>);

/// How observed values are stored.
#[derive(Clone, Copy)]
pub(super) enum Stored {
    Bf16,
    F32,
    Word,
}

impl Watch<'_> {
    /// Shows `len` values at `at`.
    pub(super) fn show(
        &mut self,
        engine: &Engine,
        stage: Stage,
        layer: Option<usize>,
        stored: Stored,
        at: u64,
        len: usize,
    ) -> Result<(), Halt> {
        self.show_pieces(engine, stage, layer, stored, &[at], len)
    }

    /// Shows pieces of `len` values each as one.
    pub(super) fn show_pieces(
        &mut self,
        engine: &Engine,
        stage: Stage,
        layer: Option<usize>,
        stored: Stored,
        pieces: &[u64],
        len: usize,
    ) -> Result<(), Halt> {
        let Some(observer) = &mut self.0 else { return Ok(()) };
        let size = if matches!(stored, Stored::Bf16) { 2 } else { 4 };
        let mut values = Vec::new();
        for &at in pieces {
            let mut bytes = vec![0; len * size];
            // SAFETY: the callers name their own buffers and counts; the wait keeps `bytes` long enough.
            unsafe { engine.device.download(&mut bytes, at) }?;
            engine.device.synchronize()?;
            values.extend(match stored {
                Stored::Bf16 => {
                    bytes.as_chunks().0.iter().map(|&b| bf16::from_le_bytes(b).to_f32()).collect()
                }
                Stored::F32 => bytes.as_chunks().0.iter().map(|&b| f32::from_le_bytes(b)).collect(),
                // Whole numbers below 2^24, exact in f32.
                Stored::Word => bytes
                    .as_chunks()
                    .0
                    .iter()
                    .map(|&b| u32::from_le_bytes(b) as f32)
                    .collect::<Vec<f32>>(),
            });
        }
        match observer.stage(stage, layer, &values) {
            ControlFlow::Continue(()) => Ok(()),
            ControlFlow::Break(()) => Err(Halt::Stopped),
        }
    }
}

impl Groups {
    /// Groups of all layers, and the jobs of the fixed ones as they belong at `buffers.jobs`.
    pub(super) fn new(shape: &Shape, weights: &WeightsAt, b: &Buffers) -> (Self, Vec<JobRecord>) {
        let mut all = Vec::new();
        let mut group = |members: &[Member], rows_max: usize| {
            let at = b.jobs + (all.len() * size_of::<JobRecord>()) as u64;
            all.extend(jobs(&weights.table, members, rows_max));
            Group::new(&weights.table, at, members.len(), members.iter().map(|m| m.layer))
        };
        let plain = |layer, y, y_pitch| Member { layer, x_col: 0, y, y_pitch };
        let kv = |i: usize| b.raw_kv + (2 * i * CONTEXT_ROWS * shape.head_dim) as u64;
        let context: Vec<Member> = weights
            .layers
            .iter()
            .enumerate()
            .map(|(i, l)| plain(l.wkv, kv(i), shape.head_dim))
            .collect();
        let main_proj = group(&[plain(weights.main_proj, b.projected, shape.hidden)], CONTEXT_ROWS);
        let context_kv = group(&context, CONTEXT_ROWS);
        let head = group(&[plain(weights.head, b.base, shape.vocab)], ROWS_MAX);
        let mut block = |members: &[Member]| group(members, ROWS_MAX);
        let width = shape.query_width() / shape.groups;
        let mut layers = Vec::new();
        for layer in &weights.layers {
            let o_a: Vec<Member> = layer
                .wo_a
                .iter()
                .enumerate()
                .map(|(g, &l)| Member {
                    layer: l,
                    x_col: g * width,
                    // What comes out goes rotated into the next layer.
                    y: 0,
                    y_pitch: 0,
                })
                .collect();
            let experts = layer.experts..layer.experts + 3 * (shape.experts + 1);
            let part = |part: &'static [usize]| {
                let first = experts.start;
                experts.clone().filter(move |i| part.contains(&((i - first) % 3)))
            };
            let jobs_max = shape.expert_jobs(shape.rows);
            layers.push(LayerGroups {
                q_kv: block(&[
                    plain(layer.wq_a, b.raw_rank, shape.q_rank),
                    plain(layer.wkv, kv(0), shape.head_dim),
                ]),
                q_b: block(&[plain(layer.wq_b, b.queries, shape.query_width())]),
                o_a: block(&o_a),
                o_b: block(&[plain(layer.wo_b, b.output, shape.hidden)]),
                gate_up: Group::new(&weights.table, b.gate_up_jobs, 2 * jobs_max, part(&[0, 1])),
                down: Group::new(&weights.table, b.down_jobs, jobs_max, part(&[2])),
            });
        }
        (Self { main_proj, context_kv, head, layers }, all)
    }
}

/// Where the source rows of a rotation are.
pub(super) struct Source {
    pub(super) x: u64,
    pub(super) pitch: usize,
    /// Source row of each rotated row, 0 for the row itself.
    pub(super) gather: u64,
    /// Angles to turn rows back by, 0 for none.
    pub(super) angles: u64,
}

/// An RMS norm of rows.
pub(super) struct Norm {
    pub(super) x: u64,
    /// Source row of each row, 0 for the row itself.
    pub(super) gather: u64,
    pub(super) weight: u64,
    /// Where the normed rows go.
    pub(super) y: u64,
}

impl Engine {
    /// Launches a pass. `places` are those of its context rows and `head_rows` the number of its head rows, both
    /// for the watch.
    pub(super) fn pass(
        &self,
        pass: Pass,
        places: &[usize],
        head_rows: usize,
        watch: &mut Watch<'_>,
    ) -> Result<(), Halt> {
        if pass.context > 0 {
            self.context(pass.context, places, watch)?;
        }
        if pass.drafts > 0 {
            self.block(pass.drafts, watch)?;
            self.head(pass.drafts, pass.head, head_rows, watch)?;
        }
        Ok(())
    }

    /// Launches a pass that nobody watches.
    pub(super) fn unwatched(&self, pass: Pass) -> Result<(), DeviceError> {
        match self.pass(pass, &[], 0, &mut Watch(None)) {
            Err(Halt::Device(error)) => Err(error),
            // Nobody watches, so nobody stops it.
            Ok(()) | Err(Halt::Stopped) => Ok(()),
        }
    }

    /// Rotated inputs of a group into `buffers.rotated`.
    pub(super) fn rotate(
        &self,
        group: &Group,
        rows: Rows,
        source: &Source,
    ) -> Result<(), DeviceError> {
        let (k, s) = (&self.kernels, &self.shape);
        let grid = [group.in_features.div_ceil(512), rows.bound, group.count];
        // SAFETY: arguments as exl3_rotate.cu declares them; the group's jobs lie within the buffers.
        unsafe {
            k.launch(
                k.exl3_rotate,
                grid,
                0,
                &[
                    Arg::At(self.buffers.table),
                    Arg::At(group.jobs),
                    Arg::At(rows.at),
                    Arg::At(source.x),
                    Arg::Word(word(source.pitch)),
                    Arg::At(source.gather),
                    Arg::At(source.angles),
                    Arg::Word(word(s.head_dim)),
                    Arg::Word(word(s.rotary)),
                    Arg::At(self.buffers.rotated),
                ],
            )
        }
    }

    /// Partial sums of a group from the rotated inputs at `rotated`.
    pub(super) fn multiply(
        &self,
        group: &Group,
        rows: Rows,
        rotated: u64,
    ) -> Result<(), DeviceError> {
        let product = Product::of(rows.bound);
        let tiles = product.tiles(rows.bound);
        let grid = [group.out_features / 128 * tiles, group.splits, group.count];
        for &kind in &group.kinds {
            // SAFETY: arguments as exl3_product.cuh declares them; the sums have room for the group.
            unsafe {
                self.kernels.launch(
                    self.kernels.product(product, kind),
                    grid,
                    product.shared(kind, rows.bound),
                    &[
                        Arg::At(self.buffers.table),
                        Arg::At(group.jobs),
                        Arg::At(rows.at),
                        Arg::At(rotated),
                        Arg::At(self.buffers.sums),
                        Arg::Word(word(tiles)),
                    ],
                )
            }?;
        }
        Ok(())
    }

    /// Outputs of a group, rounded to bf16; turned by `angles` unless 0.
    pub(super) fn finish(&self, group: &Group, rows: Rows, angles: u64) -> Result<(), DeviceError> {
        let (k, s) = (&self.kernels, &self.shape);
        let grid = [group.out_features.div_ceil(512), rows.bound, group.count];
        // SAFETY: arguments as exl3_finish.cu declares them.
        unsafe {
            k.launch(
                k.exl3_finish_bf16,
                grid,
                0,
                &[
                    Arg::At(self.buffers.table),
                    Arg::At(group.jobs),
                    Arg::At(rows.at),
                    Arg::At(self.buffers.sums),
                    Arg::At(angles),
                    Arg::Word(word(s.head_dim)),
                    Arg::Word(word(s.rotary)),
                ],
            )
        }
    }

    /// RMS norm of rows into `norm.y`, and from it the rotated inputs of a group into `buffers.rotated`.
    pub(super) fn norm_rotate(
        &self,
        group: &Group,
        rows: Rows,
        norm: &Norm,
    ) -> Result<(), DeviceError> {
        let k = &self.kernels;
        // SAFETY: arguments as norm.cu declares them; callers name buffers of that many rows.
        unsafe {
            k.launch(
                k.norm_rotate,
                [rows.bound, group.count, 1],
                2 * group.in_features,
                &[
                    Arg::At(norm.x),
                    Arg::At(norm.gather),
                    Arg::At(norm.weight),
                    Arg::At(norm.y),
                    Arg::Word(word(group.in_features)),
                    Arg::Float(self.shape.rms_eps),
                    Arg::At(self.buffers.table),
                    Arg::At(group.jobs),
                    Arg::At(self.buffers.rotated),
                    Arg::At(rows.at),
                ],
            )
        }
    }

    /// Outputs of a group as rotated inputs of the one layer of `second`, into `buffers.rotated`.
    pub(super) fn finish_rotate(
        &self,
        group: &Group,
        second: &Group,
        rows: Rows,
    ) -> Result<(), DeviceError> {
        let k = &self.kernels;
        // SAFETY: arguments as exl3_finish.cu declares them; the outputs side by side are the second's inputs.
        unsafe {
            k.launch(
                k.exl3_finish_rotate,
                [group.out_features.div_ceil(512), rows.bound, group.count],
                0,
                &[
                    Arg::At(self.buffers.table),
                    Arg::At(group.jobs),
                    Arg::At(second.jobs),
                    Arg::At(rows.at),
                    Arg::At(self.buffers.sums),
                    Arg::At(self.buffers.rotated),
                ],
            )
        }
    }
}
