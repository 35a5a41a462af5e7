//! Names of the points where a backend can be watched, stopped and compared with another.
//!
//! A stage is a value of the forward pass just after it was computed and rounded. Its name is the one the
//! fixtures use, so a stored tensor, a CPU value and a device value meet under one word. Nothing here
//! computes.

use std::ops::ControlFlow;

macro_rules! stages {
    ($($(#[$doc:meta])* $variant:ident = $name:literal,)*) => {
        /// One observable value. T counts block rows (N a draft, drafts in plan order), C context rows.
        ///
        /// "Rounded" means to bf16 under bf16 precision; every other value is f32 under both precisions.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Stage { $($(#[$doc])* $variant,)* }

        impl Stage {
            /// Every stage, in the order of the forward pass.
            pub const ALL: &[Self] = &[$(Self::$variant,)*];

            /// The name in fixtures and on the command line.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }
        }
    };
}

stages! {
    /// `[C, hidden]`: the tap projection, rounded.
    MainProj = "main_proj",
    /// `[C, hidden]`: its RMS norm, rounded.
    MainNorm = "main_x",
    /// `[C, head_dim]` a layer: context K=V after its norm, rounded.
    ContextKvNorm = "ctx_kv_normed",
    /// `[C, head_dim]` a layer: the same after rotation, rounded; what the window stores.
    ContextKv = "ctx_k",
    /// `[T, streams]` a layer: the attention's own pre-mix, used by the next sublayer.
    AttnPre = "hc_attn_pre",
    /// `[T, streams]` a layer: weights of the attention's output per stream.
    AttnPost = "hc_attn_post",
    /// `[T, streams, streams]` a layer: stream mix, source before destination.
    AttnComb = "hc_attn_comb",
    /// `[T, hidden]` a layer: collapsed streams after the attention norm, rounded.
    AttnIn = "attn_in",
    /// `[T, q_rank]` a layer: low-rank query after its norm, rounded.
    QueryRank = "qr",
    /// `[T, heads, head_dim]` a layer: rotated queries, rounded.
    Query = "q_roped",
    /// `[T, head_dim]` a layer: the block's own K=V after its norm, rounded.
    BlockKvNorm = "block_kv_normed",
    /// `[T, head_dim]` a layer: the same after rotation, rounded.
    BlockKv = "block_k",
    /// `[T, heads, head_dim]` a layer: attention output before the inverse rotation, rounded.
    Attention = "attn_core",
    /// `[T, hidden]` a layer: after both output projections, rounded.
    AttnOut = "attn_out",
    /// `[T, streams, hidden]` a layer: streams after the attention, rounded.
    StreamsAfterAttn = "streams_after_attn",
    /// `[T, streams]` a layer: the FFN's own pre-mix.
    FfnPre = "hc_ffn_pre",
    /// `[T, streams]` a layer: weights of the FFN's output per stream.
    FfnPost = "hc_ffn_post",
    /// `[T, streams, streams]` a layer: stream mix of the FFN.
    FfnComb = "hc_ffn_comb",
    /// `[T, hidden]` a layer: collapsed streams after the FFN norm, rounded.
    FfnIn = "ffn_in",
    /// `[T, experts]` a layer: router logits.
    RouterLogits = "router_logits",
    /// `[T, k]` a layer: chosen experts by falling biased score, as whole numbers.
    RouterIds = "router_ids",
    /// `[T, k]` a layer: their weights, same order.
    RouterWeights = "router_weights",
    /// `[T, hidden]` a layer: weighted sum of the chosen experts.
    Experts = "moe_routed",
    /// `[T, hidden]` a layer: the shared expert.
    SharedExpert = "moe_shared",
    /// `[T, hidden]` a layer: their sum, rounded once.
    MoeOut = "moe_out",
    /// `[T, streams, hidden]` a layer: streams after the FFN, rounded.
    StreamsAfterFfn = "streams_after_ffn",
    /// `[T, hidden]`: streams collapsed with the last pre-mix, rounded.
    Collapse = "head_hidden",
    /// `[R, hidden]`: rows below `n_out` only, after the final norm, rounded.
    HeadNorm = "head_normed",
    /// `[R, vocab]`: head output of those rows, in the logits' precision.
    BaseLogits = "base_logits",
    /// `[drafts, vocab]` a block position: bias of the previous token, in the logits' precision.
    MarkovBias = "markov_bias",
    /// `[drafts, vocab]` a block position: the sum the argmax sees.
    Logits = "logits",
    /// `[drafts]` a block position: confidence of the position.
    Confidence = "confidence",
    /// `[drafts, N]`: the answer, as whole numbers; zeros beyond `n_out`.
    DraftIds = "draft_ids",
}

impl Stage {
    /// The stage of that name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|stage| stage.name() == name)
    }
}

/// Sees every stage of a STEP as it is computed.
///
/// Context stages come once per chunk of rows, the three stages of the Markov chain once per block
/// position over the drafts that consume it; a reader appends what arrives under one name.
pub trait StageObserver {
    /// `values` of `stage`, row-major; `layer` counts draft layers where the stage belongs to one.
    /// [`ControlFlow::Break`] ends the STEP there, with its drafts zero.
    fn stage(&mut self, stage: Stage, layer: Option<usize>, values: &[f32]) -> ControlFlow<()> {
        let _ = (stage, layer, values);
        ControlFlow::Continue(())
    }
}

/// The observer of an ordinary STEP.
#[derive(Clone, Copy, Debug, Default)]
pub struct Unobserved;

impl StageObserver for Unobserved {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stage_is_found_by_its_name() {
        for &stage in Stage::ALL {
            assert_eq!(Stage::from_name(stage.name()), Some(stage));
        }
        assert_eq!(Stage::from_name("ctx"), None);
    }
}
