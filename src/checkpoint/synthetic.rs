//! Synthetic checkpoints: random weights of a whole drafter, made in memory from a seed.
//!
//! One has the live geometry and bit widths (`drafter.md` §2.5, §6), so that speed and memory can be measured
//! before the real weights are at hand. Any bits are a valid trellis; gains are chosen so that activations
//! stay near 1. Drafts of such a drafter mean nothing.
//!
//! Every piece of a tensor has a random stream of its own: the bytes depend on neither the number of threads
//! nor the order of their work.

use std::fmt;
use std::str::FromStr;

use half::{bf16, f16};
use rayon::prelude::*;

use super::{
    Checkpoint, DrafterConfig, Dtype, Identities, MarkovCache, Tensor, TensorStore, on_all_cores,
};
use crate::buffer::SharedBytes;
use crate::digest::Sha256Digest;
use crate::exl3::MUL1_MARKER;
use crate::geometry::LIVE;
use crate::random::SplitMix64;

/// Changes whenever other bytes come of the same seed: two builds must not agree on an identity and draft
/// differently.
const REVISION: u32 = 1;
/// Bytes of one random stream.
const PIECE: usize = 64 << 10;
/// Tokens of the Markov cache.
const MARKOV_TOKENS: usize = 256;
/// Where reports say a tensor comes from.
const FILE: &str = "synthetic";

/// Bits a weight of the linears: the live pack's where they are known.
const MAIN_WIDTH: usize = 5;
const DENSE_WIDTH: usize = 5;
const EXPERT_WIDTH: usize = 4;
const HEAD_WIDTH: usize = 6;

/// Which synthetic checkpoint. Written `SIZE[:SEED]`, such as `live` or `small:7`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Synthetic {
    /// Its geometry.
    pub size: SyntheticSize,
    /// The same seed gives the same bytes, on every platform.
    pub seed: u64,
}

/// Geometry of a synthetic checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SyntheticSize {
    /// The live drafter's: 9.1 GB.
    Live,
    /// The demo's: 3 MB.
    Small,
}

/// A text that names no synthetic checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected live or small, with :SEED or without, for example live:7")]
pub struct UnknownSynthetic;

impl FromStr for Synthetic {
    type Err = UnknownSynthetic;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (size, seed) = text.split_once(':').unwrap_or((text, "0"));
        let size = match size {
            "live" => SyntheticSize::Live,
            "small" => SyntheticSize::Small,
            _ => return Err(UnknownSynthetic),
        };
        Ok(Self { size, seed: seed.parse().map_err(|_| UnknownSynthetic)? })
    }
}

impl fmt::Display for Synthetic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let size = match self.size {
            SyntheticSize::Live => "live",
            SyntheticSize::Small => "small",
        };
        write!(f, "{size}:{}", self.seed)
    }
}

impl Synthetic {
    /// Shape and constants.
    pub fn config(&self) -> DrafterConfig {
        let live = DrafterConfig {
            hidden: LIVE.hidden as usize,
            vocab_size: LIVE.vocab_size as usize,
            num_hidden_layers: 40,
            stages: 3,
            heads: 64,
            head_dim: 512,
            rope_dim: 64,
            q_rank: 1280,
            o_rank: 1024,
            o_groups: 8,
            window: LIVE.window as usize,
            inter: 2304,
            experts: 128,
            experts_per_token: 3,
            hc_mult: 4,
            hc_iters: 20,
            block_size: LIVE.num_spec as usize,
            noise_token_id: LIVE.noise_token_id as usize,
            markov_rank: 256,
            max_position_embeddings: 1 << 20,
            tap_layer_ids: LIVE.tap_layer_ids[..LIVE.n_taps as usize].to_vec(),
            rms_eps: 1e-20,
            hc_eps: 1e-6,
            routed_scale: 1.5,
            swiglu_limit: 10.0,
            gate_temp: 1.0,
            rope_theta: 10_000.0,
            norm_topk: true,
            confidence_head: true,
        };
        match self.size {
            SyntheticSize::Live => live,
            SyntheticSize::Small => DrafterConfig {
                hidden: 256,
                vocab_size: 512,
                heads: 4,
                head_dim: 128,
                q_rank: 128,
                o_rank: 128,
                o_groups: 2,
                inter: 128,
                experts: 8,
                noise_token_id: 499,
                markov_rank: 128,
                ..live
            },
        }
    }

    /// What HELLO compares: digests of the name, not of the bytes, so that a client need not make them.
    pub fn identities(&self) -> Identities {
        let name = format!("dspark synthetic checkpoint {self}, revision {REVISION}\n");
        Identities {
            drafter: Sha256Digest::of(name.as_bytes()),
            markov: Sha256Digest::of(&self.markov_file()),
        }
    }

    /// All tensors, made on the threads of the pool this runs in.
    fn tensors(&self) -> Vec<Tensor> {
        let planned = Planner::default().plan(&self.config()).into_par_iter().enumerate();
        planned.map(|(stream, tensor)| tensor.fill(self.seed, stream)).collect()
    }

    /// A Markov cache of tokens from all over the vocabulary.
    fn markov_file(&self) -> Vec<u8> {
        let vocab = self.config().vocab_size;
        let tokens: Vec<usize> = (0..vocab).step_by(vocab / MARKOV_TOKENS).collect();
        serde_json::to_vec(&tokens).expect("a list of numbers")
    }
}

impl Checkpoint {
    /// Makes a synthetic checkpoint on all cores. Its bytes are the only copy.
    pub fn synthetic(synthetic: Synthetic) -> Self {
        let tensors = on_all_cores(|| synthetic.tensors());
        let config = synthetic.config();
        let bytes = tensors.iter().map(|tensor| tensor.data.len() as u64).sum();
        let markov = MarkovCache::parse(&synthetic.markov_file(), config.vocab_size);
        Self {
            tensors: TensorStore::from_tensors(tensors).expect("every name once"),
            identities: synthetic.identities(),
            markov: Some(markov.expect("ids below the vocabulary")),
            origin: format!("synthetic {synthetic}"),
            bytes,
            warnings: Vec::new(),
            config,
        }
    }
}

/// How the values of a tensor are spread.
#[derive(Clone, Copy, Debug)]
enum Spread {
    /// Every bit is drawn.
    Bits,
    /// The codebook's marker.
    Marker,
    /// Near normal, by mean and deviation.
    Normal(f32, f32),
    /// Even from the first to the second.
    Even(f32, f32),
    /// Either sign, magnitudes from 0.6 to 1.4 of this.
    Signed(f32),
}

impl Spread {
    /// The value that 64 random bits stand for.
    fn value(self, bits: u64) -> f32 {
        // 24 bits fill a significand; the top bit is left for a sign.
        let even =
            |from: f32, to: f32| from + (to - from) * (bits & 0xFF_FFFF) as f32 / 16_777_216.0;
        match self {
            Self::Bits | Self::Marker => 0.0,
            Self::Normal(mean, deviation) => {
                // Four 16-bit numbers, summed two by two; their sum has mean 131,070 and deviation
                // 65,536 / √3.
                const LOW: u64 = 0xFFFF_0000_FFFF;
                let pairs = (bits & LOW).wrapping_add((bits >> 16) & LOW);
                let sum = (pairs as u32).wrapping_add((pairs >> 32) as u32);
                mean + deviation * (sum as f32 - 131_070.0) / 37_837.2
            }
            Self::Even(from, to) => even(from, to),
            Self::Signed(gain) => {
                even(0.6 * gain, 1.4 * gain) * if bits >> 63 == 1 { -1.0 } else { 1.0 }
            }
        }
    }
}

/// A tensor to be made.
struct Planned {
    name: String,
    dtype: Dtype,
    shape: Vec<usize>,
    spread: Spread,
}

impl Planned {
    fn bytes(&self) -> usize {
        let width = match self.dtype {
            Dtype::F32 | Dtype::I32 => 4,
            _ => 2,
        };
        width * self.shape.iter().product::<usize>()
    }

    fn fill(self, seed: u64, stream: usize) -> Tensor {
        let mut data = vec![0; self.bytes()];
        data.par_chunks_mut(PIECE).enumerate().for_each(|(piece, out)| {
            let mut random = SplitMix64::at(seed, stream as u64, piece as u64);
            self.fill_piece(&mut random, out);
        });
        let Self { name, dtype, shape, .. } = self;
        Tensor { name, file: FILE.into(), dtype, shape, data: SharedBytes::new(data) }
    }

    fn fill_piece(&self, random: &mut SplitMix64, out: &mut [u8]) {
        let mut value = || self.spread.value(random.next());
        match self.dtype {
            Dtype::Bf16 => {
                let values = out.as_chunks_mut::<2>().0.iter_mut();
                values.for_each(|v| *v = bf16::from_f32(value()).to_le_bytes());
            }
            Dtype::F16 => {
                let values = out.as_chunks_mut::<2>().0.iter_mut();
                values.for_each(|v| *v = f16::from_f32(value()).to_le_bytes());
            }
            Dtype::F32 => {
                let values = out.as_chunks_mut::<4>().0.iter_mut();
                values.for_each(|v| *v = value().to_le_bytes());
            }
            Dtype::I32 => out.copy_from_slice(&MUL1_MARKER.to_le_bytes()),
            // A trellis has whole tiles of at least 32 bytes.
            _ => {
                let words = out.as_chunks_mut::<8>().0.iter_mut();
                words.for_each(|word| *word = random.next().to_le_bytes());
            }
        }
    }
}

/// Lists the drafter's tensors, `drafter.md` §2.1. Gains are those of the demo's weights.
#[derive(Default)]
struct Planner(Vec<Planned>);

impl Planner {
    fn plan(mut self, c: &DrafterConfig) -> Vec<Planned> {
        let (hidden, last) = (c.hidden, c.stages - 1);
        self.matrix("embed.weight", Dtype::Bf16, &[c.vocab_size, hidden], 1.0);
        self.linear("mtp.0.main_proj", c.tap_layer_ids.len() * hidden, hidden, MAIN_WIDTH, 1.0);
        self.norm("mtp.0.main_norm.weight", hidden);
        for stage in 0..c.stages {
            self.attention(c, &format!("mtp.{stage}"));
            self.experts(c, &format!("mtp.{stage}"));
        }
        self.norm(&format!("mtp.{last}.norm.weight"), hidden);
        self.linear("head", hidden, c.vocab_size, HEAD_WIDTH, 2.5);
        let (rank, markov) = (c.markov_rank, format!("mtp.{last}.markov_head"));
        let table = [c.vocab_size, rank];
        self.matrix(&format!("{markov}.embed.weight"), Dtype::Bf16, &table, 1.0);
        self.matrix(&format!("{markov}.head.weight"), Dtype::F16, &table, 1.7 / root(rank));
        let confidence = format!("mtp.{last}.confidence_head.proj.weight");
        self.matrix(&confidence, Dtype::F16, &[1, hidden + rank], 1.0 / root(hidden + rank));
        self.0
    }

    fn attention(&mut self, c: &DrafterConfig, stage: &str) {
        let heads_width = c.heads * c.head_dim;
        self.norm(&format!("{stage}.attn_norm.weight"), c.hidden);
        self.linear(&format!("{stage}.attn.wq_a"), c.hidden, c.q_rank, DENSE_WIDTH, 1.0);
        self.norm(&format!("{stage}.attn.q_norm.weight"), c.q_rank);
        self.linear(&format!("{stage}.attn.wq_b"), c.q_rank, heads_width, DENSE_WIDTH, 1.5);
        self.linear(&format!("{stage}.attn.wkv"), c.hidden, c.head_dim, DENSE_WIDTH, 1.0);
        self.norm(&format!("{stage}.attn.kv_norm.weight"), c.head_dim);
        let sinks = Spread::Even(0.0, 7.0);
        self.add(&format!("{stage}.attn.attn_sink"), Dtype::F32, &[c.heads], sinks);
        let (groups, inputs) = (c.o_groups, heads_width / c.o_groups);
        for group in 0..groups {
            let slice = format!("{stage}.attn.wo_a.slice.{group}");
            self.linear(&slice, inputs, c.o_rank, DENSE_WIDTH, 2.0);
        }
        self.linear(&format!("{stage}.attn.wo_b"), groups * c.o_rank, c.hidden, DENSE_WIDTH, 1.0);
        for part in ["attn", "ffn"] {
            let (mixes, inputs) = (c.hc_mult * (2 + c.hc_mult), c.hc_mult * c.hidden);
            let function = format!("{stage}.hc_{part}_fn");
            self.matrix(&function, Dtype::F32, &[mixes, inputs], 0.6 / root(inputs));
            let base = format!("{stage}.hc_{part}_base");
            self.add(&base, Dtype::F32, &[mixes], Spread::Normal(0.0, 1.0));
            let scale = format!("{stage}.hc_{part}_scale");
            self.add(&scale, Dtype::F32, &[3], Spread::Even(0.5, 1.5));
        }
    }

    fn experts(&mut self, c: &DrafterConfig, stage: &str) {
        let ffn = format!("{stage}.ffn");
        self.norm(&format!("{stage}.ffn_norm.weight"), c.hidden);
        let gate = [c.experts, c.hidden];
        self.matrix(&format!("{ffn}.gate.weight"), Dtype::F16, &gate, 1.6 / root(c.hidden));
        let bias = Spread::Normal(0.0, 0.2);
        self.add(&format!("{ffn}.gate.bias"), Dtype::F32, &[c.experts], bias);
        for expert in 0..c.experts {
            self.expert(c, &format!("{ffn}.experts.{expert}"), EXPERT_WIDTH, 0.1);
        }
        self.expert(c, &format!("{ffn}.shared_experts"), DENSE_WIDTH, 0.2);
    }

    fn expert(&mut self, c: &DrafterConfig, expert: &str, width: usize, gain: f32) {
        self.linear(&format!("{expert}.w1"), c.hidden, c.inter, width, 2.5);
        self.linear(&format!("{expert}.w3"), c.hidden, c.inter, width, 2.5);
        self.linear(&format!("{expert}.w2"), c.inter, c.hidden, width, gain);
    }

    /// An EXL3 layer whose outputs are about `gain` where its inputs are about 1: trellis values are, and
    /// rotations leave lengths alone.
    fn linear(&mut self, module: &str, inputs: usize, outputs: usize, width: usize, gain: f32) {
        let tiles = [inputs / 16, outputs / 16, 16 * width];
        self.add(&format!("{module}.trellis"), Dtype::I16, &tiles, Spread::Bits);
        let scales = Spread::Signed(1.0);
        self.add(&format!("{module}.suh"), Dtype::F16, &[inputs], scales);
        let scales = Spread::Signed(gain / root(inputs));
        self.add(&format!("{module}.svh"), Dtype::F16, &[outputs], scales);
        self.add(&format!("{module}.mul1"), Dtype::I32, &[], Spread::Marker);
    }

    fn matrix(&mut self, name: &str, dtype: Dtype, shape: &[usize], deviation: f32) {
        self.add(name, dtype, shape, Spread::Normal(0.0, deviation));
    }

    fn norm(&mut self, name: &str, width: usize) {
        self.add(name, Dtype::Bf16, &[width], Spread::Normal(1.0, 0.1));
    }

    fn add(&mut self, name: &str, dtype: Dtype, shape: &[usize], spread: Spread) {
        let (name, shape) = (name.to_owned(), shape.to_vec());
        self.0.push(Planned { name, dtype, shape, spread });
    }
}

fn root(n: usize) -> f32 {
    (n as f32).sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALL: Synthetic = Synthetic { size: SyntheticSize::Small, seed: 7 };

    /// Digest of all names, shapes and bytes.
    fn digest(tensors: &[Tensor]) -> String {
        let mut all = Vec::new();
        for tensor in tensors {
            all.extend(format!("{} {} {:?}\n", tensor.name, tensor.dtype, tensor.shape).bytes());
            all.extend(&tensor.data[..]);
        }
        Sha256Digest::of(&all).to_string()
    }

    #[test]
    fn a_seed_means_the_same_bytes_on_any_number_of_threads() {
        let expected = digest(&SMALL.tensors());
        // Other bytes under the same identity would let two builds draft differently: raise REVISION.
        assert_eq!(expected, "ec4b33755541cafb0b4731cb8688f69cfd14c818750681b756b0cff0761aa118");
        for threads in [1, 5] {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            assert_eq!(digest(&pool.install(|| SMALL.tensors())), expected, "{threads} threads");
        }
        assert_ne!(digest(&Synthetic { seed: 8, ..SMALL }.tensors()), expected);
    }

    #[test]
    fn every_size_and_seed_has_an_identity_of_its_own() {
        let live = Synthetic { size: SyntheticSize::Live, ..SMALL };
        let other = Synthetic { seed: 8, ..live };
        let [a, b, c] = [SMALL, live, other].map(|s| s.identities().drafter);
        assert!(a != b && b != c && c != a);
    }

    #[test]
    fn the_live_one_has_the_live_geometry_and_budget() {
        let live = Synthetic { size: SyntheticSize::Live, seed: 0 };
        let config = live.config();
        assert_eq!(config.geometry(4).unwrap(), LIVE);
        let planned = Planner::default().plan(&config);
        // `drafter.md` §6, in units of 0.1 MB.
        for (part, expected) in [
            ("mtp.0.main_proj", 492),
            ("mtp.1.attn.w", 793),
            ("mtp.2.ffn.experts.127.", 177),
            ("head.", 4967),
            ("", 91_343),
        ] {
            let part_of = planned.iter().filter(|t| t.name.starts_with(part));
            let bytes: usize = part_of.map(Planned::bytes).sum();
            assert_eq!((bytes + 50_000) / 100_000, expected, "{part}");
        }
    }

    #[test]
    fn a_name_reads_back_and_nothing_else_is_read() {
        for text in ["live:0", "small:18446744073709551615"] {
            assert_eq!(text.parse::<Synthetic>().unwrap().to_string(), text);
        }
        assert_eq!("live".parse(), Ok(Synthetic { size: SyntheticSize::Live, seed: 0 }));
        for text in ["", "Live", "live:", "live:-1", "tiny", "live:0:0"] {
            assert_eq!(text.parse::<Synthetic>(), Err(UnknownSynthetic), "{text}");
        }
    }
}
