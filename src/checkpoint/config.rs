//! `config.json`: the shape and the constants of the drafter (deepseek-ai/DeepSeek-V4.1-Flash
//! `config.json` and `inference/model.py`).
//!
//! Every number a later module allocates or indexes by is bounded here. Only the keys the drafter reads are
//! kept: the quantization ledger in the same file may have tens of megabytes.

use super::keys::{Keys, KeysError};
use crate::geometry::{Geometry, GeometryError, LIVE, SLOTS_MAX, TAP_ID_SLOTS};

/// Name of the configuration inside a checkpoint directory.
pub const CONFIG_NAME: &str = "config.json";
/// Every side of a quantized matrix is a multiple of this, the width of a Hadamard block.
const BLOCK: usize = 128;
/// Largest value of any width; keeps products of two widths far from overflow.
const WIDTH_MAX: usize = 1 << 16;

/// Shape and constants of one drafter. Values are checked: nonzero, bounded, and consistent with each other.
#[derive(Clone, Debug, PartialEq)]
pub struct DrafterConfig {
    /// Hidden size, a multiple of 128.
    pub hidden: usize,
    /// Vocabulary, a multiple of 128.
    pub vocab_size: usize,
    /// Layers of the target.
    pub num_hidden_layers: usize,
    /// Draft layers, `mtp.0 ..`.
    pub stages: usize,
    /// Query heads, a multiple of `o_groups`.
    pub heads: usize,
    /// Width of a head, and of the one key that is also the value.
    pub head_dim: usize,
    /// Rotary dimensions, the last ones of a head; even.
    pub rope_dim: usize,
    /// Rank of the query projection.
    pub q_rank: usize,
    /// Rank of one output group.
    pub o_rank: usize,
    /// Output groups.
    pub o_groups: usize,
    /// Context rows a block attends to, W.
    pub window: usize,
    /// Inner width of an expert.
    pub inter: usize,
    /// Routed experts of a stage.
    pub experts: usize,
    /// Experts a token is routed to.
    pub experts_per_token: usize,
    /// Hyper-connection streams.
    pub hc_mult: usize,
    /// Sinkhorn iterations.
    pub hc_iters: usize,
    /// Draft positions of one block, N.
    pub block_size: usize,
    /// Token id of the query rows after the anchor.
    pub noise_token_id: usize,
    /// Rank of the Markov bias.
    pub markov_rank: usize,
    /// Positions the target was built for; 1,048,576 where the file does not say.
    pub max_position_embeddings: usize,
    /// Target layers whose input is tapped, in row order.
    pub tap_layer_ids: Vec<u32>,
    /// Epsilon of every RMS norm. The release's 1e-20 is a normal f32 and zero in half precision.
    pub rms_eps: f32,
    /// Epsilon of the Sinkhorn normalisation.
    pub hc_eps: f32,
    /// Factor of the routed experts' sum.
    pub routed_scale: f32,
    /// Clamp of the SwiGLU inputs; 0 means none.
    pub swiglu_limit: f32,
    /// Router logits are divided by this.
    pub gate_temp: f32,
    /// Base of the rotary frequencies.
    pub rope_theta: f64,
    /// Whether the chosen experts' weights are renormalised.
    pub norm_topk: bool,
    /// Whether the confidence head is used.
    pub confidence_head: bool,
}

/// Why a `config.json` describes no drafter this crate can run.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// A key is missing or has a value of another type, or the file is no JSON object.
    #[error("{CONFIG_NAME}: {0}")]
    Keys(#[from] KeysError),
    /// A value outside its range, or at odds with another one.
    #[error("{CONFIG_NAME}: {key} is {found}, allowed is {allowed}")]
    Value {
        /// The key as the file spells it.
        key: &'static str,
        /// The value.
        found: String,
        /// The range in words.
        allowed: String,
    },
}

impl DrafterConfig {
    /// Reads a `config.json`: every key is looked up in `text_config` first, then at the top level.
    ///
    /// # Errors
    /// The first key that is missing, of another type or out of range, with what was found.
    pub fn parse(json: &[u8]) -> Result<Self, ConfigError> {
        let keys = Keys::parse(json)?;
        let config = read(&keys)?;
        config.check()?;
        check_family(&keys, &config)?;
        Ok(config)
    }

    /// What a worker of this drafter agrees on with its client, with `max_slots` windows resident (contract
    /// §6.2). `max_model_len` is the live build's 327,680, or less where the target has fewer positions.
    ///
    /// # Errors
    /// `max_slots` out of range, or a row too large for one request.
    pub fn geometry(&self, max_slots: u32) -> Result<Geometry, GeometryError> {
        // Every field was bounded far below u32::MAX by `check`.
        let narrow = |value: usize| u32::try_from(value).unwrap_or(u32::MAX);
        let mut tap_layer_ids = [0; TAP_ID_SLOTS];
        tap_layer_ids.iter_mut().zip(&self.tap_layer_ids).for_each(|(slot, id)| *slot = *id);
        let geometry = Geometry {
            num_spec: narrow(self.block_size),
            window: narrow(self.window),
            hidden: narrow(self.hidden),
            n_taps: narrow(self.tap_layer_ids.len()),
            tap_layer_ids,
            noise_token_id: narrow(self.noise_token_id),
            vocab_size: narrow(self.vocab_size),
            max_model_len: LIVE.max_model_len.min(narrow(self.max_position_embeddings)),
            max_slots,
            max_rows_per_step: 0,
        };
        // The row limit follows from the slots only inside their range.
        let geometry = geometry.with_slots(max_slots.min(SLOTS_MAX));
        let geometry = Geometry { max_slots, ..geometry };
        geometry.validate()?;
        Ok(geometry)
    }

    fn check(&self) -> Result<(), ConfigError> {
        blocks("hidden_size", self.hidden)?;
        within("vocab_size", self.vocab_size, BLOCK, 1 << 24)?;
        multiple("vocab_size", self.vocab_size, BLOCK)?;
        within("num_hidden_layers", self.num_hidden_layers, 1, 1024)?;
        within("num_nextn_predict_layers", self.stages, 1, 16)?;
        blocks("head_dim", self.head_dim)?;
        within("num_attention_heads", self.heads, 1, 1024)?;
        within("o_groups", self.o_groups, 1, self.heads)?;
        multiple("num_attention_heads", self.heads, self.o_groups)?;
        within("qk_rope_head_dim", self.rope_dim, 2, self.head_dim)?;
        multiple("qk_rope_head_dim", self.rope_dim, 2)?;
        blocks("q_lora_rank", self.q_rank)?;
        blocks("o_lora_rank", self.o_rank)?;
        within("sliding_window", self.window, 1, 4096)?;
        blocks("moe_intermediate_size", self.inter)?;
        within("dspark_n_routed_experts", self.experts, 1, 4096)?;
        within("dspark_num_experts_per_tok", self.experts_per_token, 1, self.experts.min(64))?;
        within("hc_mult", self.hc_mult, 1, 16)?;
        within("hc_sinkhorn_iters", self.hc_iters, 1, 1000)?;
        within("dspark_block_size", self.block_size, 1, 64)?;
        within("dspark_noise_token_id", self.noise_token_id, 0, self.vocab_size - 1)?;
        within("dspark_markov_rank", self.markov_rank, 1, WIDTH_MAX)?;
        within("max_position_embeddings", self.max_position_embeddings, 1, 1 << 30)?;
        within("number of dspark_target_layer_ids", self.tap_layer_ids.len(), 1, TAP_ID_SLOTS)?;
        for &id in &self.tap_layer_ids {
            within("dspark_target_layer_ids", id as usize, 0, self.num_hidden_layers - 1)?;
        }
        above_zero("rms_norm_eps", self.rms_eps, 1.0)?;
        above_zero("hc_eps", self.hc_eps, 1.0)?;
        above_zero("routed_scaling_factor", self.routed_scale, 1e6)?;
        above_zero("gate_temp", self.gate_temp, 1e6)?;
        // Zero means "no clamp".
        if self.swiglu_limit != 0.0 {
            above_zero("swiglu_limit", self.swiglu_limit, 1e6)?;
        }
        if !(1.0..=1e12).contains(&self.rope_theta) {
            return Err(refuse("rope_theta", self.rope_theta, "1 to 1e12"));
        }
        Ok(())
    }
}

fn read(keys: &Keys) -> Result<DrafterConfig, KeysError> {
    let expert_keys = ["dspark_n_routed_experts", "n_routed_experts"];
    let per_token_keys =
        ["dspark_num_experts_per_tok", "dspark_n_activated_experts", "num_experts_per_tok"];
    Ok(DrafterConfig {
        hidden: keys.size(&["hidden_size"])?,
        vocab_size: keys.size(&["vocab_size"])?,
        num_hidden_layers: keys.size(&["num_hidden_layers"])?,
        stages: keys.size_or(&["num_nextn_predict_layers", "n_mtp_layers"], 3)?,
        heads: keys.size(&["num_attention_heads"])?,
        head_dim: keys.size(&["head_dim"])?,
        rope_dim: keys.size(&["qk_rope_head_dim"])?,
        q_rank: keys.size(&["q_lora_rank"])?,
        o_rank: keys.size(&["o_lora_rank"])?,
        o_groups: keys.size(&["o_groups"])?,
        window: keys.size(&["sliding_window"])?,
        inter: keys.size(&["moe_intermediate_size"])?,
        experts: keys.size(&expert_keys)?,
        experts_per_token: keys.size(&per_token_keys)?,
        hc_mult: keys.size(&["hc_mult"])?,
        hc_iters: keys.size(&["hc_sinkhorn_iters"])?,
        block_size: keys.size(&["dspark_block_size"])?,
        noise_token_id: keys.size(&["dspark_noise_token_id"])?,
        markov_rank: keys.size(&["dspark_markov_rank"])?,
        max_position_embeddings: keys.size_or(&["max_position_embeddings"], 1 << 20)?,
        tap_layer_ids: keys.ids("dspark_target_layer_ids")?,
        rms_eps: keys.single("rms_norm_eps", None)?,
        hc_eps: keys.single("hc_eps", None)?,
        routed_scale: keys.single("routed_scaling_factor", None)?,
        swiglu_limit: keys.single("swiglu_limit", Some(0.0))?,
        gate_temp: keys.single("gate_temp", Some(1.0))?,
        rope_theta: keys.double("rope_theta", None)?,
        norm_topk: keys.flag_or("norm_topk_prob", true)?,
        confidence_head: keys.flag_or("enable_confidence_head", true)?,
    })
}

/// Keys that are not parameters but say that the checkpoint is of the family implemented here.
fn check_family(keys: &Keys, config: &DrafterConfig) -> Result<(), ConfigError> {
    let exactly = |key, found: usize, wanted: usize| {
        if found == wanted { Ok(()) } else { Err(refuse(key, found, wanted)) }
    };
    exactly("num_key_value_heads", keys.size_or(&["num_key_value_heads"], 1)?, 1)?;
    exactly("n_shared_experts", keys.size_or(&["n_shared_experts"], 1)?, 1)?;
    let draft_vocab = keys.size_or(&["draft_vocab_size"], config.vocab_size)?;
    exactly("draft_vocab_size", draft_vocab, config.vocab_size)?;
    let words = [("scoring_func", None, "sqrtsoftplus"), ("hidden_act", Some("silu"), "silu")];
    for (key, default, wanted) in words {
        let found = keys.word(key, default)?;
        if found != wanted {
            return Err(refuse(key, format_args!("{found:?}"), format_args!("{wanted:?}")));
        }
    }
    if !keys.flag_or("sample_from_anchor", true)? {
        return Err(refuse("sample_from_anchor", false, true));
    }
    if let Some(found) = keys.describe("dspark_draft_topk") {
        // Drafts are the argmax over the whole vocabulary (contract §6.2, sample_mode 1).
        return Err(refuse("dspark_draft_topk", found, "only absence"));
    }
    let ratios = keys.ids_or_none("compress_ratios")?.unwrap_or_default();
    let stages = ratios.iter().skip(config.num_hidden_layers).take(config.stages);
    match stages.into_iter().find(|ratio| **ratio != 0) {
        None => Ok(()),
        Some(ratio) => Err(refuse("compress_ratios", ratio, "0 for every draft layer")),
    }
}

fn refuse(key: &'static str, found: impl ToString, allowed: impl ToString) -> ConfigError {
    ConfigError::Value { key, found: found.to_string(), allowed: allowed.to_string() }
}

fn within(key: &'static str, value: usize, min: usize, max: usize) -> Result<(), ConfigError> {
    if (min..=max).contains(&value) {
        return Ok(());
    }
    Err(refuse(key, value, format_args!("{min} to {max}")))
}

fn multiple(key: &'static str, value: usize, of: usize) -> Result<(), ConfigError> {
    if value.is_multiple_of(of) {
        return Ok(());
    }
    Err(refuse(key, value, format_args!("a multiple of {of}")))
}

/// One side of a quantized matrix.
fn blocks(key: &'static str, value: usize) -> Result<(), ConfigError> {
    within(key, value, BLOCK, WIDTH_MAX)?;
    multiple(key, value, BLOCK)
}

fn above_zero(key: &'static str, value: f32, max: f32) -> Result<(), ConfigError> {
    // Not a number fails both comparisons.
    if value > 0.0 && value <= max {
        return Ok(());
    }
    Err(refuse(key, value, format_args!("above 0, up to {max}")))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const TINY: &[u8] = include_bytes!("../../fixtures/tiny/config.json");

    /// The tiny configuration with `key` of `text_config` replaced, or removed by null.
    fn with(key: &str, value: Value) -> Result<DrafterConfig, String> {
        let mut config: Value = serde_json::from_slice(TINY).unwrap();
        config["text_config"][key] = value;
        DrafterConfig::parse(config.to_string().as_bytes()).map_err(|error| error.to_string())
    }

    #[test]
    fn the_tiny_configuration_is_read() {
        let config = DrafterConfig::parse(TINY).unwrap();
        let shape =
            [config.hidden, config.vocab_size, config.stages, config.heads, config.head_dim];
        assert_eq!(shape, [256, 512, 3, 4, 128]);
        assert_eq!((config.experts, config.experts_per_token), (8, 3));
        assert_eq!(config.tap_layer_ids, [37, 38, 39]);
        assert_eq!((config.rms_eps, config.hc_eps, config.gate_temp), (1e-20, 1e-6, 1.0));
        assert_eq!((config.rope_theta, config.swiglu_limit), (10_000.0, 10.0));
        assert!(config.norm_topk && config.confidence_head);
        let geometry = config.geometry(4).unwrap();
        let expected = Geometry { hidden: 256, noise_token_id: 499, vocab_size: 512, ..LIVE };
        assert_eq!(geometry, expected);
    }

    #[test]
    fn absent_keys_take_their_defaults_or_are_named() {
        for key in [
            "hidden_size",
            "vocab_size",
            "num_hidden_layers",
            "rms_norm_eps",
            "num_attention_heads",
            "head_dim",
            "qk_rope_head_dim",
            "q_lora_rank",
            "o_lora_rank",
            "o_groups",
            "sliding_window",
            "rope_theta",
            "moe_intermediate_size",
            "scoring_func",
            "routed_scaling_factor",
            "hc_mult",
            "hc_sinkhorn_iters",
            "hc_eps",
            "dspark_block_size",
            "dspark_noise_token_id",
            "dspark_target_layer_ids",
            "dspark_markov_rank",
        ] {
            assert_eq!(with(key, Value::Null), Err(format!("config.json: {key} is missing")));
        }
        assert_eq!(with("num_nextn_predict_layers", Value::Null).unwrap().stages, 3);
        assert_eq!(with("swiglu_limit", Value::Null).unwrap().swiglu_limit, 0.0);
        assert_eq!(with("dspark_n_routed_experts", Value::Null).unwrap().experts, 384);
        assert_eq!(with("dspark_num_experts_per_tok", Value::Null).unwrap().experts_per_token, 6);
        let far = with("max_position_embeddings", Value::Null).unwrap();
        assert_eq!(far.geometry(4).unwrap().max_model_len, 327_680);
        let near = with("max_position_embeddings", json!(4096)).unwrap();
        assert_eq!(near.geometry(4).unwrap().max_model_len, 4096);
    }

    #[test]
    fn values_out_of_range_are_refused_by_key() {
        for (key, value, message) in [
            ("hidden_size", json!("256"), r#"the string "256", expected a whole number"#),
            ("hidden_size", json!(-1), "the number -1, expected a whole number"),
            ("hidden_size", json!(256.5), "the number 256.5, expected a whole number"),
            ("hidden_size", json!(200), "200, allowed is a multiple of 128"),
            ("hidden_size", json!(1u64 << 63), "9223372036854775808, allowed is 128 to 65536"),
            ("vocab_size", json!(1000), "1000, allowed is a multiple of 128"),
            ("vocab_size", json!(0), "0, allowed is 128 to 16777216"),
            ("num_hidden_layers", json!(0), "0, allowed is 1 to 1024"),
            ("head_dim", json!(64), "64, allowed is 128 to 65536"),
            ("num_attention_heads", json!(5), "5, allowed is a multiple of 2"),
            ("o_groups", json!(0), "0, allowed is 1 to 4"),
            ("qk_rope_head_dim", json!(63), "63, allowed is a multiple of 2"),
            ("qk_rope_head_dim", json!(130), "130, allowed is 2 to 128"),
            ("dspark_num_experts_per_tok", json!(9), "9, allowed is 1 to 8"),
            ("dspark_block_size", json!(65), "65, allowed is 1 to 64"),
            ("dspark_noise_token_id", json!(512), "512, allowed is 0 to 511"),
            ("dspark_target_layer_ids", json!([40]), "40, allowed is 0 to 39"),
            ("dspark_target_layer_ids", json!(37), "the number 37, expected an array of ids"),
            ("rms_norm_eps", json!(0.0), "0, allowed is above 0, up to 1"),
            ("rms_norm_eps", json!(1e-60), "0, allowed is above 0, up to 1"),
            ("swiglu_limit", json!(-1), "-1, allowed is above 0, up to 1000000"),
            ("rope_theta", json!(0), "0, allowed is 1 to 1e12"),
            ("scoring_func", json!("softmax"), r#""softmax", allowed is "sqrtsoftplus""#),
            ("hidden_act", json!("gelu"), r#""gelu", allowed is "silu""#),
            ("n_shared_experts", json!(2), "2, allowed is 1"),
            ("num_key_value_heads", json!(8), "8, allowed is 1"),
            ("draft_vocab_size", json!(256), "256, allowed is 512"),
            ("sample_from_anchor", json!(false), "false, allowed is true"),
            ("dspark_draft_topk", json!(256), "the number 256, allowed is only absence"),
            ("norm_topk_prob", json!(1), "the number 1, expected true or false"),
            (
                "compress_ratios",
                json!([&[2; 40][..], &[0, 0, 1]].concat()),
                "1, allowed is 0 for every draft layer",
            ),
        ] {
            assert_eq!(with(key, value).unwrap_err(), format!("config.json: {key} is {message}"));
        }
        let five = with("dspark_target_layer_ids", json!([1, 2, 3, 4, 5])).unwrap_err();
        assert!(five.contains("number of dspark_target_layer_ids is 5"), "{five}");
    }

    #[test]
    fn keys_are_found_in_text_config_first_then_at_the_top() {
        let mut config: Value = serde_json::from_slice(TINY).unwrap();
        let mut flat = config["text_config"].take();
        config["hidden_size"] = json!(1);
        assert!(DrafterConfig::parse(config.to_string().as_bytes()).is_err());
        let text = flat.to_string();
        assert_eq!(
            DrafterConfig::parse(text.as_bytes()).unwrap(),
            DrafterConfig::parse(TINY).unwrap()
        );
        flat["n_mtp_layers"] = json!(2);
        flat["num_nextn_predict_layers"] = Value::Null;
        flat["dspark_n_activated_experts"] = json!(5);
        flat["dspark_num_experts_per_tok"] = Value::Null;
        let nested = json!({ "hidden_size": 1, "hc_mult": "x", "text_config": flat });
        let config = DrafterConfig::parse(nested.to_string().as_bytes()).unwrap();
        assert_eq!((config.hidden, config.stages, config.experts_per_token), (256, 2, 5));
    }

    #[test]
    fn slots_out_of_range_are_refused() {
        let config = DrafterConfig::parse(TINY).unwrap();
        for slots in [0, 33, u32::MAX] {
            assert_eq!(config.geometry(slots).unwrap_err().field, "max_slots", "{slots}");
        }
        assert_eq!(config.geometry(32).unwrap().max_rows_per_step, 32 * 128);
    }

    #[test]
    fn a_large_quantization_ledger_is_skipped() {
        let entry = r#"{"bits":[1,2,{"deep":[[[["x"]]]]}],"text_config":{"hidden_size":7}}"#;
        let ledger: Vec<_> = (0..50_000).map(|i| format!(r#""layers.{i}":{entry}"#)).collect();
        let ledger =
            format!(r#"{{"quantization_config":{{"tensor_storage":{{{}}}}},"#, ledger.join(","));
        let tiny = std::str::from_utf8(TINY).unwrap().trim_start().strip_prefix('{').unwrap();
        let config = DrafterConfig::parse((ledger + tiny).as_bytes()).unwrap();
        assert_eq!(config, DrafterConfig::parse(TINY).unwrap());
    }

    #[test]
    fn what_is_no_object_is_refused() {
        for text in ["", "[]", "{", "5", r#"{"text_config": 5}"#, "{\"a\": nan}"] {
            let error = DrafterConfig::parse(text.as_bytes()).unwrap_err().to_string();
            assert!(error.starts_with("config.json: is not a JSON object"), "{text}: {error}");
        }
    }
}
