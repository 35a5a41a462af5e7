//! One name for each tensor, whatever a pack calls it.
//!
//! Names are taken apart at the dots and compared by whole components: `w1` is a substring of
//! `markov_w1`, and a loader that matched substrings would swallow one for the other.

/// Name of a tensor in the release's spelling (`mtp.{i}.…`, `embed.weight`, `head.…`), or the name
/// itself when no renaming is known.
pub(super) struct Names {
    first_layer: usize,
    layers: usize,
    /// Whether the pack numbers the draft layers on after the target's (`model.layers.40`). Only then do
    /// `model.norm` and the heads below `model.` belong to the drafter.
    numbered: bool,
}

impl Names {
    /// Naming of a pack whose target has `first_layer` layers, followed by `layers` draft layers.
    pub(super) fn of<'a>(
        first_layer: usize,
        layers: usize,
        mut tensors: impl Iterator<Item = &'a str>,
    ) -> Self {
        let mut names = Self { first_layer, layers, numbered: false };
        names.numbered = tensors.any(|name| names.numbered_layer(name).is_some());
        names
    }

    /// The name in the release's spelling.
    pub(super) fn canonical(&self, name: &str) -> String {
        let last = self.layers.saturating_sub(1);
        let name = if let Some((layer, rest)) = self.numbered_layer(name) {
            format!("mtp.{layer}.{rest}")
        } else if let Some(rest) = name.strip_prefix("model.mtp.") {
            format!("mtp.{rest}")
        } else if let Some(rest) = name.strip_prefix("model.").filter(|_| self.numbered) {
            match rest.split('.').next() {
                Some("main_proj" | "main_norm") => format!("mtp.0.{rest}"),
                Some("norm" | "markov_head" | "confidence_head") => format!("mtp.{last}.{rest}"),
                _ => name.to_owned(),
            }
        } else {
            name.to_owned()
        };
        rename_parts(&name)
    }

    /// Draft layer and remainder of a `model.layers.{first_layer + i}.` name.
    fn numbered_layer<'a>(&self, name: &'a str) -> Option<(usize, &'a str)> {
        let (layer, rest) = name.strip_prefix("model.layers.")?.split_once('.')?;
        let layer = layer.parse::<usize>().ok()?.checked_sub(self.first_layer)?;
        (layer < self.layers).then_some((layer, rest))
    }
}

fn rename_parts(name: &str) -> String {
    let parts: Vec<&str> = name.split('.').collect();
    match parts[..] {
        ["embed_tokens", "weight"] | ["model", "embed_tokens", "weight"] => "embed.weight".into(),
        ["lm_head", ..] => format!("head.{}", parts[1..].join(".")),
        ["mtp", layer, "markov_head", "markov_w1", "weight"] => {
            format!("mtp.{layer}.markov_head.embed.weight")
        }
        ["mtp", layer, "markov_head", "markov_w2", "weight"] => {
            format!("mtp.{layer}.markov_head.head.weight")
        }
        ["mtp", layer, "ffn", "gate", "e_score_correction_bias"] => {
            format!("mtp.{layer}.ffn.gate.bias")
        }
        ["mtp", layer, "ffn", "shared_experts", projection, ref rest @ ..] => {
            let projection = match projection {
                "gate_proj" => "w1",
                "up_proj" => "w3",
                "down_proj" => "w2",
                other => other,
            };
            format!("mtp.{layer}.ffn.shared_experts.{projection}.{}", rest.join("."))
        }
        _ => name.to_owned(),
    }
}

/// Why a tensor of that (canonical) name may stay unread, if it may: it belongs to the target, or the
/// drafter is known to do without it.
pub(super) fn ignorable(name: &str) -> Option<&'static str> {
    let parts: Vec<&str> = name.split('.').collect();
    match parts[..] {
        ["mtp", _, "ffn", "gate", "bias_vl"] => Some("image tokens only, never drafted"),
        ["mtp", ..] => None,
        _ => Some("not the drafter's"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_accepted_spelling_has_the_releases_name() {
        let numbered = Names { first_layer: 40, layers: 3, numbered: true };
        for (given, canonical) in [
            ("mtp.1.attn.wq_a.trellis", "mtp.1.attn.wq_a.trellis"),
            ("model.mtp.1.attn.wq_a.trellis", "mtp.1.attn.wq_a.trellis"),
            ("model.layers.41.attn.wq_a.trellis", "mtp.1.attn.wq_a.trellis"),
            ("model.layers.39.attn.wq_a.trellis", "model.layers.39.attn.wq_a.trellis"),
            ("model.layers.43.attn.wq_a.trellis", "model.layers.43.attn.wq_a.trellis"),
            ("model.main_proj.suh", "mtp.0.main_proj.suh"),
            ("model.norm.weight", "mtp.2.norm.weight"),
            ("model.markov_head.markov_w1.weight", "mtp.2.markov_head.embed.weight"),
            ("mtp.2.markov_head.markov_w2.weight", "mtp.2.markov_head.head.weight"),
            ("model.embed_tokens.weight", "embed.weight"),
            ("lm_head.trellis", "head.trellis"),
            ("mtp.0.ffn.shared_experts.down_proj.suh", "mtp.0.ffn.shared_experts.w2.suh"),
            ("mtp.0.ffn.gate.e_score_correction_bias", "mtp.0.ffn.gate.bias"),
        ] {
            assert_eq!(numbered.canonical(given), canonical, "{given}");
        }
    }

    #[test]
    fn the_targets_norm_is_not_the_drafters() {
        let names = Names::of(40, 3, ["mtp.0.main_proj.suh", "model.norm.weight"].into_iter());
        assert_eq!(names.canonical("model.norm.weight"), "model.norm.weight");
        assert!(ignorable("model.norm.weight").is_some());
    }

    #[test]
    fn only_listed_drafter_tensors_may_stay_unread() {
        assert!(ignorable("mtp.0.ffn.gate.bias_vl").is_some());
        assert!(ignorable("mtp.0.ffn.gate.bias_x").is_none());
        assert!(ignorable("mtp.7.attn.wq_a.trellis").is_none());
        assert!(ignorable("vision.blocks.0.weight").is_some());
    }
}
