//! OpenMetrics text of a STATS document, for `/metrics` and `dspark stats --openmetrics`.
//!
//! One encoder serves both, so that a dashboard reads the same names from either. Names and denominators of
//! `dspark_spec_decode_*` are those of vLLM's own `vllm:spec_decode_*` (`vllm-project/vllm`
//! `vllm/v1/spec_decode/metrics.py`): acceptance is accepted over draft tokens, and the mean length is
//! 1 + accepted / drafts. No metric is of a type that the older Prometheus text format lacks, so a textfile
//! collector reads it as well.

use std::fmt::Error;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, NoLabelSet, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::exemplar::Exemplar;
use prometheus_client::registry::{Registry, Unit};
use serde_json::Value;

use super::progress::{STALL, progress};

/// The content type of [`openmetrics`].
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Constant texts of STATS, labels of `dspark_build_info`.
const FACTS: [&str; 12] = [
    "version",
    "contract",
    "checkpoint",
    "drafter_identity",
    "markov_identity",
    "backend",
    "device",
    "precision",
    "logits",
    "kv",
    "worker",
    "client",
];
/// Counts of STATS that are counters as they are: key, name, help.
const COUNTERS: [(&str, &str, &str); 4] = [
    ("steps", "steps", "STEPs answered OK"),
    ("rows", "rows", "Tap rows stored"),
    ("rows_bytes", "rows_bytes", "Bytes of the tap rows stored"),
    ("drafted_requests", "drafted_requests", "Blocks of drafts answered"),
];
/// Objects of STATS whose keys become the values of a label: key, name, label, help.
const LABELLED: [(&str, &str, &str, &str); 4] = [
    ("frames", "frames", "status", "Frames answered, by frame status"),
    ("entries", "entries", "status", "Entries of STEPs answered, by entry status"),
    ("requests", "requests", "op", "Frames received, by operation"),
    ("link", "link_events", "event", "What happened on the drafting listeners"),
];
/// Ages and sizes of STATS that are gauges: key, name, unit, help.
const GAUGES: [(&str, &str, Option<Unit>, &str); 6] = [
    ("uptime_s", "uptime", Some(Unit::Seconds), "Time since the worker was ready"),
    ("last_step_age_s", "last_step_age", Some(Unit::Seconds), "Time since the last STEP"),
    (
        "loop_age_s",
        "loop_age",
        Some(Unit::Seconds),
        "Time since the drafting thread was in its loop",
    ),
    ("gpu_mem_bytes", "gpu_memory", Some(Unit::Bytes), "Device memory held, 0 on the CPU"),
    ("window", "window_rows_max", None, "Rows a full window holds"),
    ("max_slots", "slots", None, "Request slots"),
];

/// The metrics of a STATS document. What the document does not say is left out.
pub fn openmetrics(stats: &Value) -> String {
    let mut registry = Registry::with_prefix("dspark");
    registry.register_collector(Box::new(Document(stats.clone())));
    let mut out = String::new();
    text::encode(&mut out, &registry).expect("a string takes everything");
    out
}

#[derive(Debug)]
struct Document(Value);

impl Collector for Document {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), Error> {
        let doc = &self.0;
        let mut out = Writer(&mut encoder);
        let facts = FACTS.iter().filter_map(|key| Some((*key, doc[key].as_str()?.to_owned())));
        let facts = [(facts.collect(), 1.0)];
        out.gauges("build_info", "What runs here, in labels", None, facts)?;
        let ready = f64::from(u8::from(progress(doc, STALL, false).is_ok()));
        out.gauge("ready", "1 while drafting makes progress, as /readyz", None, ready)?;
        let open = f64::from(u8::from(doc["session"].as_u64().is_some_and(|id| id != 0)));
        out.gauge("session_open", "1 after an accepted HELLO", None, open)?;
        let failing = doc["failing_s"].as_f64().unwrap_or(0.0);
        let help = "Time for which no STEP has given drafts, 0 when the last one has";
        out.gauge("failing", help, Some(&Unit::Seconds), failing)?;
        for (key, name, unit, help) in &GAUGES {
            if let Some(value) = doc[key].as_f64() {
                out.gauge(name, help, unit.as_ref(), value)?;
            }
        }
        for (key, name, help) in COUNTERS {
            if let Some(value) = doc[key].as_u64() {
                out.counters(name, help, [(None, value)])?;
            }
        }
        for (key, name, label, help) in LABELLED {
            let values = doc[key].as_object().into_iter().flatten();
            let values = values.filter_map(|(k, v)| Some((Some((label, k.clone())), v.as_u64()?)));
            out.counters(name, help, values)?;
        }
        acceptance(&mut out, &doc["acceptance"])?;
        markov(&mut out, &doc["markov"])?;
        listeners(&mut out, &doc["listeners"])?;
        slots(&mut out, &doc["slots"])?;
        out.histogram("worker", "Time to apply and draft a STEP", &doc["worker_us_hist"])?;
        let help = "Time from a STEP's first byte received to its last";
        out.histogram("receive", help, &doc["receive_us_hist"])?;
        let help = "Time from a STEP's last byte received to its reply handed over";
        out.histogram("recv_to_send", help, &doc["recv_to_send_us_hist"])
    }
}

/// vLLM's four counters, and the denominator of the per-position one: engines vary what they verify.
fn acceptance(out: &mut Writer<'_, '_>, doc: &Value) -> Result<(), Error> {
    let list = |key: &str| -> Vec<u64> {
        doc[key].as_array().into_iter().flatten().filter_map(Value::as_u64).collect()
    };
    let (verified, accepted) = (list("verified"), list("accepted"));
    let one = |n: u64| [(None, n)];
    let rounds = list("accepted_hist").iter().sum();
    out.counters("spec_decode_num_drafts", "Blocks the engine verified", one(rounds))?;
    let help = "Draft tokens the engine verified";
    out.counters("spec_decode_num_draft_tokens", help, one(verified.iter().sum()))?;
    let help = "Draft tokens the engine accepted";
    out.counters("spec_decode_num_accepted_tokens", help, one(accepted.iter().sum()))?;
    let by_position = |counts: Vec<u64>| {
        let counts = counts.into_iter().enumerate();
        counts.map(|(position, n)| (Some(("position", position.to_string())), n))
    };
    let help = "Draft tokens the engine verified, by position in the block";
    out.counters("spec_decode_num_draft_tokens_per_pos", help, by_position(verified))?;
    let help = "Draft tokens the engine accepted, by position in the block";
    out.counters("spec_decode_num_accepted_tokens_per_pos", help, by_position(accepted))
}

/// Roads of the Markov step; nothing for a backend that does not count them.
fn markov(out: &mut Writer<'_, '_>, doc: &Value) -> Result<(), Error> {
    if doc.is_null() {
        return Ok(());
    }
    let road = |road: &'static str| Some((Some(("road", road.to_owned())), doc[road].as_u64()?));
    let help = "Markov steps, by how their bias was computed";
    out.counters(
        "markov_steps",
        help,
        ["resident", "pruned", "dense"].into_iter().filter_map(road),
    )?;
    for (key, name, help) in [
        ("rows", "markov_rows", "Rows of the vocabulary that Markov steps multiplied"),
        ("rows_full", "markov_rows_full", "Rows they would have multiplied if spared none"),
    ] {
        out.counters(name, help, doc[key].as_u64().map(|value| (None, value)))?;
    }
    Ok(())
}

/// Round trips of the drafting connections; a listener without one has no series.
fn listeners(out: &mut Writer<'_, '_>, listeners: &Value) -> Result<(), Error> {
    let listeners: Vec<_> = listeners.as_array().into_iter().flatten().collect();
    let values = |key: &'static str, scale: f64| {
        listeners.iter().filter_map(move |listener| {
            let label = ("listener", listener["listen"].as_str()?.to_owned());
            Some((vec![label], listener["connection"][key].as_f64()? / scale))
        })
    };
    for (key, name, help) in [
        ("min_rtt_us", "link_rtt_min", "Smallest TCP round trip since the client connected"),
        (
            "rtt_us",
            "link_rtt",
            "Smoothed TCP round trip, with the client's delayed acknowledgements",
        ),
        ("rttvar_us", "link_rtt_deviation", "Smoothed mean deviation of the TCP round trip"),
    ] {
        out.gauges(name, help, Some(&Unit::Seconds), values(key, 1e6))?;
    }
    let help = "Segments sent again to the client since it connected";
    out.gauges("link_retransmits", help, None, values("retransmits", 1.0))
}

fn slots(out: &mut Writer<'_, '_>, slots: &Value) -> Result<(), Error> {
    let slots: Vec<_> = slots.as_array().into_iter().flatten().collect();
    let label = |slot: &Value| ("slot", slot["slot"].to_string());
    let rows = slots.iter().filter_map(|s| Some((vec![label(s)], s["rows"].as_f64()?)));
    out.gauges("slot_window_rows", "Rows in a slot's window", None, rows)?;
    for (key, name, help) in [
        ("drafts", "slot_drafts", "Blocks of drafts answered, by slot"),
        ("verified", "slot_draft_tokens", "Draft tokens the engine verified, by slot"),
        ("accepted", "slot_accepted_tokens", "Draft tokens the engine accepted, by slot"),
    ] {
        let values = slots.iter().filter_map(|s| Some((Some(label(s)), s[key].as_u64()?)));
        out.counters(name, help, values)?;
    }
    Ok(())
}

type Label = (&'static str, String);

/// Families of metrics, one call each.
struct Writer<'a, 'b>(&'a mut DescriptorEncoder<'b>);

impl Writer<'_, '_> {
    fn gauge(
        &mut self,
        name: &str,
        help: &str,
        unit: Option<&Unit>,
        value: f64,
    ) -> Result<(), Error> {
        self.0.encode_descriptor(name, help, unit, MetricType::Gauge)?.encode_gauge(&value)
    }

    fn gauges(
        &mut self,
        name: &str,
        help: &str,
        unit: Option<&Unit>,
        values: impl IntoIterator<Item = (Vec<Label>, f64)>,
    ) -> Result<(), Error> {
        let mut family = self.0.encode_descriptor(name, help, unit, MetricType::Gauge)?;
        for (labels, value) in values {
            family.encode_family(&labels)?.encode_gauge(&value)?;
        }
        Ok(())
    }

    fn counters(
        &mut self,
        name: &str,
        help: &str,
        values: impl IntoIterator<Item = (Option<Label>, u64)>,
    ) -> Result<(), Error> {
        const NO_EXEMPLAR: Option<&Exemplar<NoLabelSet, f64>> = None;
        let mut family = self.0.encode_descriptor(name, help, None, MetricType::Counter)?;
        for (label, value) in values {
            match label {
                Some(label) => {
                    family.encode_family(&[label])?.encode_counter(&value, NO_EXEMPLAR)?;
                }
                None => family.encode_counter(&value, NO_EXEMPLAR)?,
            }
        }
        Ok(())
    }

    /// A `*_hist` object of STATS, in seconds.
    fn histogram(&mut self, name: &str, help: &str, doc: &Value) -> Result<(), Error> {
        let list = |key: &str| doc[key].as_array().into_iter().flatten();
        let bounds = list("le_us").filter_map(Value::as_f64).map(|us| us / 1e6);
        let (Some(samples), Some(sum)) = (doc["samples"].as_u64(), doc["sum_us"].as_f64()) else {
            return Ok(());
        };
        // The encoder sums up what each bucket adds.
        let mut below = 0;
        let counts = list("count").filter_map(Value::as_u64).map(|count| {
            let added = count.saturating_sub(below);
            below = count;
            added
        });
        let mut buckets: Vec<(f64, u64)> = bounds.zip(counts).collect();
        buckets.push((f64::INFINITY, samples.saturating_sub(below)));
        self.0
            .encode_descriptor(name, help, Some(&Unit::Seconds), MetricType::Histogram)?
            .encode_histogram::<NoLabelSet>(sum / 1e6, samples, &buckets, None)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_empty_document_is_valid_text() {
        let text = openmetrics(&json!({}));
        assert!(text.contains("dspark_spec_decode_num_drafts_total 0\n"), "{text}");
        assert!(text.ends_with("# EOF\n"), "{text}");
    }

    #[test]
    fn acceptance_carries_the_names_of_vllm_under_our_prefix() {
        let text = openmetrics(&json!({ "acceptance": {
            "accepted_hist": [1, 0, 2], "verified": [3, 2], "accepted": [2, 2] } }));
        for line in [
            "dspark_spec_decode_num_drafts_total 3",
            "dspark_spec_decode_num_draft_tokens_total 5",
            "dspark_spec_decode_num_accepted_tokens_total 4",
            "dspark_spec_decode_num_accepted_tokens_per_pos_total{position=\"1\"} 2",
            "dspark_spec_decode_num_draft_tokens_per_pos_total{position=\"0\"} 3",
        ] {
            assert!(text.lines().any(|l| l == line), "{line} is not in\n{text}");
        }
    }

    #[test]
    fn histograms_are_cumulative_and_end_at_infinity() {
        let text = openmetrics(&json!({ "worker_us_hist": {
            "le_us": [500, 1000], "count": [2, 3], "samples": 4, "sum_us": 9000 } }));
        for line in [
            "dspark_worker_seconds_bucket{le=\"0.0005\"} 2",
            "dspark_worker_seconds_bucket{le=\"0.001\"} 3",
            "dspark_worker_seconds_bucket{le=\"+Inf\"} 4",
            "dspark_worker_seconds_count 4",
            "dspark_worker_seconds_sum 0.009",
        ] {
            assert!(text.lines().any(|l| l == line), "{line} is not in\n{text}");
        }
    }
}
