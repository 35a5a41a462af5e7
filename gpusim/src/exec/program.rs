//! A kernel ready to run: decoded once per module, shared by all launches.

use std::sync::Arc;

use super::lanes::{MaskFn, RowFn};
use crate::ptx::types::Type;

/// Index of a 64-bit row in a warp's register file.
pub(crate) type RowIndex = u16;

/// Index of a predicate of a warp.
pub(crate) type PredIndex = u16;

/// A kernel.
pub(crate) struct Kernel {
    pub(crate) name: String,
    pub(crate) code: Vec<Instruction>,
    /// Parameters by offset and size in the parameter buffer.
    pub(crate) params: Vec<Param>,
    pub(crate) param_bytes: usize,
    /// Rows of the register file: registers, then the constants and special registers below.
    pub(crate) rows: usize,
    pub(crate) predicates: usize,
    pub(crate) constants: Vec<(RowIndex, u64)>,
    pub(crate) specials: Vec<(RowIndex, Special)>,
    /// Bytes of static shared memory.
    pub(crate) static_shared: usize,
    /// Where `extern __shared__` memory begins.
    pub(crate) dynamic_shared_at: usize,
    /// Bytes of `.local` memory per thread.
    pub(crate) local_bytes: usize,
    pub(crate) max_threads: u32,
    /// Whether blocks may affect each other: then they run one after the other.
    pub(crate) has_global_atomics: bool,
    /// Parameters through which the kernel may write, for the race check.
    pub(crate) writes: Writes,
    /// Registers as a compiler might count them: an estimate for occupancy queries.
    pub(crate) registers: u32,
    /// The module's text, for messages.
    pub(crate) source: Arc<str>,
}

impl Kernel {
    /// Lines of instructions that are not known.
    pub(crate) fn unknown_lines(&self) -> Vec<u32> {
        let unknown =
            self.code.iter().filter(|instruction| matches!(instruction.action, Action::Unknown));
        unknown.map(|instruction| instruction.line).collect()
    }
}

/// A kernel parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Param {
    pub(crate) offset: usize,
    pub(crate) bytes: usize,
}

/// Which memory a kernel can store to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Writes {
    /// Only what these parameters (by index) point to.
    Params(Vec<usize>),
    /// A stored-to address was itself loaded or built from several sources.
    Anywhere,
}

/// A special register.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Special {
    Tid(usize),
    Ntid(usize),
    Ctaid(usize),
    Nctaid(usize),
    LaneId,
    WarpId,
    NumWarps,
    SmId,
    NumSms,
    GridId,
    /// Masks of lanes equal to, below, … the own one.
    LaneMaskEq,
    LaneMaskLt,
    LaneMaskLe,
    LaneMaskGt,
    LaneMaskGe,
    DynamicSharedBytes,
    TotalSharedBytes,
}

/// One instruction.
pub(crate) struct Instruction {
    /// Predicate, and whether lanes where it is false are meant.
    pub(crate) guard: Option<(PredIndex, bool)>,
    pub(crate) action: Action,
    /// Line of the module text.
    pub(crate) line: u32,
}

/// Which memory an address means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MemorySpace {
    Generic,
    Global,
    Shared,
    Local,
    Param,
}

/// Shape of a load or store: `count` elements of `bytes` bytes.
#[derive(Clone, Debug)]
pub(crate) struct Access {
    pub(crate) space: MemorySpace,
    pub(crate) bytes: usize,
    pub(crate) address: RowIndex,
    pub(crate) offset: i64,
    pub(crate) registers: Vec<RowIndex>,
    /// For loads: sign-extend to this many bits.
    pub(crate) extend_to: Option<u32>,
    /// The access is of a volatile, relaxed or acquire/release kind and no race by itself.
    pub(crate) is_strong: bool,
}

impl Access {
    /// Bytes one lane touches.
    pub(crate) fn width(&self) -> usize {
        self.bytes * self.registers.len()
    }
}

/// What an atomic does to memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AtomicOp {
    Add,
    Min,
    Max,
    And,
    Or,
    Xor,
    Exch,
    Cas,
    Inc,
    Dec,
}

/// `atom` and `red`.
#[derive(Clone, Debug)]
pub(crate) struct Atomic {
    pub(crate) op: AtomicOp,
    pub(crate) ty: Type,
    pub(crate) space: MemorySpace,
    /// `None` for `red`.
    pub(crate) destination: Option<RowIndex>,
    pub(crate) address: RowIndex,
    pub(crate) offset: i64,
    pub(crate) a: RowIndex,
    /// Second source of `cas`.
    pub(crate) b: RowIndex,
    /// The operation is itself a release (`.release`, `.acq_rel`).
    pub(crate) releases: bool,
}

impl Atomic {
    /// Whether the target can be global memory.
    pub(crate) fn may_be_global(&self) -> bool {
        matches!(self.space, MemorySpace::Global | MemorySpace::Generic)
    }
}

/// Direction of a shuffle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ShuffleMode {
    Up,
    Down,
    Butterfly,
    Index,
}

/// `vote.sync`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum VoteMode {
    All,
    Any,
    Uniform,
}

/// Reductions of `redux.sync`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReduxOp {
    Add,
    Min,
    Max,
    And,
    Or,
    Xor,
}

/// Formats of a tensor-core product's factors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MmaFormat {
    F16,
    Bf16,
    Tf32,
}

/// Logic of predicates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PredOp {
    And,
    Or,
    Xor,
}

/// A predicate operand and whether it is negated; `None` stands for true.
pub(crate) type PredSource = (Option<PredIndex>, bool);

/// What an instruction does.
pub(crate) enum Action {
    /// A function of the first `count` sources.
    Compute {
        f: RowFn,
        destination: RowIndex,
        sources: [RowIndex; 4],
        count: usize,
    },
    /// Addition and multiplication that set or use the carry flag.
    Carry {
        op: CarryOp,
        destination: RowIndex,
        sources: [RowIndex; 3],
    },
    /// `selp`
    Select {
        destination: RowIndex,
        a: RowIndex,
        b: RowIndex,
        pred: PredSource,
    },
    /// `setp`: the relation, combined with a predicate, and its opposite.
    SetPred {
        f: MaskFn,
        high: Option<MaskFn>,
        a: RowIndex,
        b: RowIndex,
        combine: Option<(PredOp, PredSource)>,
        destination: Option<PredIndex>,
        opposite: Option<PredIndex>,
    },
    /// Predicate logic; `mov` and `not` are `Or` with twice the same source.
    PredLogic {
        op: PredOp,
        destination: PredIndex,
        a: PredSource,
        b: PredSource,
    },
    /// `mov.b64 {a, b}, c`: the parts have `bits` each.
    Unpack {
        parts: Vec<Option<RowIndex>>,
        bits: u32,
        source: RowIndex,
    },
    /// `mov.b64 c, {a, b}`
    Pack {
        destination: RowIndex,
        parts: Vec<RowIndex>,
        bits: u32,
    },
    /// Adds or removes the window of a memory space: `cvta`.
    Window {
        destination: RowIndex,
        source: RowIndex,
        add: u64,
        remove: bool,
    },
    /// `isspacep`
    IsSpace {
        destination: PredIndex,
        source: RowIndex,
        space: MemorySpace,
    },
    /// `%clock` and its like: the warp's instruction count stands for time.
    Clock {
        destination: RowIndex,
    },
    Load(Access),
    Store(Access),
    Atomic(Atomic),
    /// `cp.async`: bytes written, and the row with the bytes read where it is given.
    CopyAsync {
        to: RowIndex,
        to_offset: i64,
        from: RowIndex,
        from_offset: i64,
        bytes: usize,
        source_bytes: Option<RowIndex>,
    },
    CopyCommit,
    /// Waits until at most this many groups are pending; `None` waits for everything.
    CopyWait(Option<usize>),
    LoadMatrix {
        registers: Vec<RowIndex>,
        address: RowIndex,
        offset: i64,
        transposed: bool,
    },
    Mma {
        format: MmaFormat,
        depth: usize,
        d: [RowIndex; 4],
        a: Vec<RowIndex>,
        b: Vec<RowIndex>,
        c: [RowIndex; 4],
    },
    Shuffle {
        mode: ShuffleMode,
        destination: RowIndex,
        in_range: Option<PredIndex>,
        value: RowIndex,
        lane: RowIndex,
        clamp: RowIndex,
        members: RowIndex,
    },
    Vote {
        mode: VoteMode,
        destination: PredIndex,
        source: PredSource,
        members: RowIndex,
    },
    Ballot {
        destination: RowIndex,
        source: PredSource,
        members: RowIndex,
    },
    Match {
        destination: RowIndex,
        value: RowIndex,
        members: RowIndex,
        all: Option<Option<PredIndex>>,
    },
    Redux {
        op: ReduxOp,
        signed: bool,
        destination: RowIndex,
        value: RowIndex,
        members: RowIndex,
    },
    ActiveMask {
        destination: RowIndex,
    },
    /// `bar.sync`: barrier and, for a part of the block, the threads that take part.
    Barrier {
        id: RowIndex,
        threads: Option<RowIndex>,
    },
    /// `bar.arrive`
    BarrierArrive {
        id: RowIndex,
    },
    WarpBarrier {
        members: RowIndex,
    },
    /// Memory fence of block (false) or device scope.
    Fence {
        device: bool,
    },
    Branch {
        target: usize,
    },
    BranchIndexed {
        index: RowIndex,
        targets: Vec<usize>,
    },
    /// Calls a device function; the return address goes to a row.
    Call {
        target: usize,
        return_row: RowIndex,
    },
    /// Returns from a device function.
    Return {
        return_row: RowIndex,
    },
    Exit,
    Trap,
    /// Hints: prefetches, sleeps.
    Nothing,
    /// Not known to the emulator; stops when executed.
    Unknown,
}

/// Arithmetic with the carry flag.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CarryOp {
    pub(crate) kind: CarryKind,
    pub(crate) bits: u32,
    /// The flag is an input (`addc`, `subc`, `madc`).
    pub(crate) uses: bool,
    /// The flag is written (`.cc`).
    pub(crate) sets: bool,
}

/// What is computed before the carry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CarryKind {
    Add,
    Sub,
    MadLow,
    MadHigh { signed: bool },
}

/// Base of shared memory in generic addresses: outside of what a host address can be.
pub(crate) const SHARED_WINDOW: u64 = 0x0100_0000_0000_0000;

/// Base of local memory in generic addresses.
pub(crate) const LOCAL_WINDOW: u64 = 0x0200_0000_0000_0000;
