//! What STATS says of the drafting connections and their round trips, as text.

use serde_json::Value;

use crate::output::{count, micros};

/// One line a drafting listener: the round trips of its connection as the worker's kernel measures them. Where there
/// are several, who is connected tells them apart.
pub(crate) fn round_trips(doc: &Value) -> Vec<String> {
    let listeners: Vec<_> = doc["listeners"].as_array().into_iter().flatten().collect();
    if listeners.is_empty() {
        return vec!["n/a".into()];
    }
    listeners.iter().map(|listener| round_trip(listener, listeners.len() > 1)).collect()
}

fn round_trip(listener: &Value, named: bool) -> String {
    let connection = &listener["connection"];
    let Some(peer) = connection["peer"].as_str() else {
        return format!("n/a (no client on {})", listener["listen"].as_str().unwrap_or("n/a"));
    };
    let time = |key: &str| connection[key].as_f64().map_or("n/a".to_owned(), micros);
    let Some(retransmits) = connection["retransmits"].as_u64() else {
        return format!("n/a ({peer}; the kernel does not say)");
    };
    let peer = if named { format!("  ({peer})") } else { String::new() };
    format!(
        "min {}  smoothed {}  deviation {}  resent {}{peer}",
        time("min_rtt_us"),
        time("rtt_us"),
        time("rttvar_us"),
        count(retransmits),
    )
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn every_listener_has_a_line_and_what_is_not_known_says_so() {
        assert_eq!(round_trips(&json!({})), ["n/a"]);
        let measured = json!({ "listen": "tcp://127.0.0.1:3", "connection": {
            "peer": "127.0.0.1:8", "age_s": 1.0,
            "min_rtt_us": 23, "rtt_us": 41_200, "rttvar_us": 2700, "retransmits": 1234 } });
        let lines = round_trips(&json!({ "listeners": [
            { "listen": "tcp://127.0.0.1:1" },
            { "listen": "tcp://127.0.0.1:2", "connection": { "peer": "127.0.0.1:9", "age_s": 1.0 } },
            measured,
        ] }));
        let expected = [
            "n/a (no client on tcp://127.0.0.1:1)",
            "n/a (127.0.0.1:9; the kernel does not say)",
            "min 23.0 µs  smoothed 41.2 ms  deviation 2700 µs  resent 1,234  (127.0.0.1:8)",
        ];
        assert_eq!(lines, expected);
        let alone = "min 23.0 µs  smoothed 41.2 ms  deviation 2700 µs  resent 1,234";
        assert_eq!(round_trips(&json!({ "listeners": [measured] })), [alone]);
    }
}
