//! Names of tensors: one canonical spelling for the drafter's, and which of a checkpoint's are not its own.
//!
//! Canonical are the names of the model release (deepseek-ai/DeepSeek-V4.1-Flash `inference/model.py`);
//! the others are those of vLLM (vllm-project/vllm `vllm/models/deepseek_v41/nvidia/dspark.py`) and of
//! repacked checkpoints. Names are compared component by component, never by substring: `w1` is part of
//! `markov_w1`.

/// Layers of the target; stage `i` of the drafter is called layer `40 + i` where it is numbered among them.
const TARGET_LAYERS: usize = 40;
/// The stage that carries the drafter's final norm and its heads.
const LAST_STAGE: usize = 2;

/// What the names of one checkpoint have in common.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Layout {
    /// The checkpoint holds a drafter alone, its stages called `model.layers.{40 + i}`. Only then is
    /// `model.norm` the drafter's norm; beside target layers it is the target's.
    drafter_alone: bool,
}

impl Layout {
    /// The layout of a checkpoint with these tensors.
    pub(super) fn of<'a>(names: impl IntoIterator<Item = &'a str>) -> Self {
        let (mut stages, mut others) = (false, false);
        for name in names {
            match components(name) {
                (parts, true) if is_stage_layer(&parts) => stages = true,
                // Target layers, or stages that name their own norm: `model.norm` is the target's.
                (parts, _) => others |= matches!(parts[..], ["layers" | "mtp", _, ..]),
            }
        }
        Self { drafter_alone: stages && !others }
    }

    /// The canonical name of a tensor that the drafter may read; `None` for any other.
    pub(super) fn canonical(self, name: &str) -> Option<String> {
        let (parts, in_model) = components(name);
        match parts.as_slice() {
            ["mtp", stage, rest @ ..] if !rest.is_empty() => Some(in_stage(number(stage)?, rest)),
            ["layers", layer, rest @ ..] if in_model && !rest.is_empty() => {
                Some(in_stage(number(layer)?.checked_sub(TARGET_LAYERS)?, rest))
            }
            rest @ ["main_proj" | "main_norm", _, ..] if in_model => Some(in_stage(0, rest)),
            rest @ ["markov_head" | "confidence_head", _, ..] if in_model => {
                Some(in_stage(LAST_STAGE, rest))
            }
            rest @ ["norm", "weight"] if in_model && self.drafter_alone => {
                Some(in_stage(LAST_STAGE, rest))
            }
            ["embed" | "embed_tokens", rest @ ..] if !rest.is_empty() => Some(join("embed", rest)),
            ["head" | "lm_head", rest @ ..] if !rest.is_empty() => Some(join("head", rest)),
            _ => None,
        }
    }

    /// Whether a tensor is known to be of no use to the drafter: the selection bias of image tokens, the
    /// vision tower, the target's layers and its norm.
    pub(super) fn is_ignored(self, name: &str) -> bool {
        let (parts, _) = components(name);
        match parts.as_slice() {
            [.., "gate", "bias_vl"] | ["vision" | "aligner", ..] => true,
            [first, ..] if first.starts_with("image_") => true,
            ["layers", ..] | ["norm", "weight"] => self.canonical(name).is_none(),
            _ => false,
        }
    }
}

/// The components of a name without a leading `model`, and whether there was one.
fn components(name: &str) -> (Vec<&str>, bool) {
    let inner = name.strip_prefix("model.");
    (inner.unwrap_or(name).split('.').collect(), inner.is_some())
}

fn is_stage_layer(parts: &[&str]) -> bool {
    matches!(parts, ["layers", layer, ..] if number(layer).is_some_and(|n| n >= TARGET_LAYERS))
}

/// A number as names spell it: digits without a leading zero, so that two names never mean one tensor.
fn number(text: &str) -> Option<usize> {
    let plain = text.bytes().all(|b| b.is_ascii_digit()) && (text == "0" || !text.starts_with('0'));
    if plain { text.parse().ok() } else { None }
}

fn in_stage(stage: usize, rest: &[&str]) -> String {
    let rest = match rest {
        ["markov_head", "markov_w1", tail @ ..] => join("markov_head.embed", tail),
        ["markov_head", "markov_w2", tail @ ..] => join("markov_head.head", tail),
        ["ffn", "gate", "e_score_correction_bias"] => "ffn.gate.bias".to_owned(),
        ["ffn", "shared_experts", linear, tail @ ..] => {
            let linear = match *linear {
                "gate_proj" => "w1",
                "up_proj" => "w3",
                "down_proj" => "w2",
                other => other,
            };
            join(&format!("ffn.shared_experts.{linear}"), tail)
        }
        other => other.join("."),
    };
    format!("mtp.{stage}.{rest}")
}

fn join(head: &str, tail: &[&str]) -> String {
    tail.iter().fold(head.to_owned(), |name, part| name + "." + part)
}

#[cfg(test)]
mod tests {
    use super::*;

    const BESIDE_TARGET: Layout = Layout { drafter_alone: false };
    const ALONE: Layout = Layout { drafter_alone: true };

    #[test]
    fn every_spelling_leads_to_the_canonical_name() {
        for (name, canonical) in [
            ("mtp.1.attn.wq_a.trellis", "mtp.1.attn.wq_a.trellis"),
            ("model.mtp.1.attn.wq_a.suh", "mtp.1.attn.wq_a.suh"),
            ("model.layers.42.hc_attn_fn", "mtp.2.hc_attn_fn"),
            ("model.main_proj.trellis", "mtp.0.main_proj.trellis"),
            ("model.main_norm.weight", "mtp.0.main_norm.weight"),
            ("model.markov_head.markov_w1.weight", "mtp.2.markov_head.embed.weight"),
            ("mtp.2.markov_head.markov_w2.weight", "mtp.2.markov_head.head.weight"),
            ("model.confidence_head.proj.weight", "mtp.2.confidence_head.proj.weight"),
            ("embed.weight", "embed.weight"),
            ("embed_tokens.weight", "embed.weight"),
            ("model.embed_tokens.weight", "embed.weight"),
            ("lm_head.trellis", "head.trellis"),
            ("mtp.0.ffn.shared_experts.gate_proj.svh", "mtp.0.ffn.shared_experts.w1.svh"),
            ("mtp.0.ffn.shared_experts.up_proj.svh", "mtp.0.ffn.shared_experts.w3.svh"),
            ("mtp.0.ffn.shared_experts.down_proj.svh", "mtp.0.ffn.shared_experts.w2.svh"),
            ("model.layers.41.ffn.gate.e_score_correction_bias", "mtp.1.ffn.gate.bias"),
            ("mtp.0.attn.wo_a.slice.7.trellis", "mtp.0.attn.wo_a.slice.7.trellis"),
        ] {
            assert_eq!(BESIDE_TARGET.canonical(name).as_deref(), Some(canonical), "{name}");
            assert!(!BESIDE_TARGET.is_ignored(name), "{name}");
        }
    }

    #[test]
    fn names_match_by_whole_components() {
        for name in [
            "mtp.0.ffn.experts.3.markov_w1.weight",
            "mtp.0.markov_head.w1.weight",
            "mtp.0.ffn.experts.0.gate_proj.weight",
        ] {
            assert_eq!(BESIDE_TARGET.canonical(name).as_deref(), Some(name));
        }
        for name in
            ["mtp", "mtp.0", "mtp.x.norm.weight", "mtp.00.norm.weight", "mtpx.0.norm", "head"]
        {
            assert_eq!(BESIDE_TARGET.canonical(name), None, "{name}");
        }
        for name in
            ["header.weight", "main_proj.trellis", "markov_head.embed.weight", "", "..", "model."]
        {
            assert_eq!(BESIDE_TARGET.canonical(name), None, "{name}");
            assert!(!BESIDE_TARGET.is_ignored(name), "{name}");
        }
    }

    #[test]
    fn what_the_drafter_never_reads_is_ignored() {
        for name in [
            "mtp.0.ffn.gate.bias_vl",
            "vision.blocks.0.weight",
            "model.aligner.w",
            "image_newline",
            "layers.3.attn.wq_a.weight",
            "model.layers.39.attn_norm.weight",
            "norm.weight",
            "model.norm.weight",
        ] {
            assert!(BESIDE_TARGET.is_ignored(name), "{name}");
        }
        for name in ["mtp.2.norm.weight", "imagery.x", "visions.x", "mtp.0.layers.1", "norm.bias"] {
            assert!(!BESIDE_TARGET.is_ignored(name), "{name}");
        }
    }

    #[test]
    fn model_norm_is_the_drafters_only_where_no_target_is() {
        let alone = ["model.layers.40.attn_norm.weight", "model.norm.weight", "model.embed.weight"];
        assert_eq!(Layout::of(alone), ALONE);
        assert_eq!(ALONE.canonical("model.norm.weight").as_deref(), Some("mtp.2.norm.weight"));
        assert!(!ALONE.is_ignored("model.norm.weight"));
        assert_eq!(ALONE.canonical("norm.weight"), None);
        for beside in ["model.layers.7.attn_norm.weight", "model.mtp.2.norm.weight"] {
            assert_eq!(Layout::of(alone.into_iter().chain([beside])), BESIDE_TARGET, "{beside}");
        }
    }
}
