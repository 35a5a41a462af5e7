//! Words for JSON values in error messages, and the byte-order mark some editors put before them.
//!
//! Receipts, configurations and Markov caches are written by other tools, so every reader of this module
//! says what it found instead of what it expected.

use serde_json::Value;

/// Longest part of a text value that is quoted in a message, in characters.
const QUOTED_MAX: usize = 60;

/// Drops a UTF-8 byte-order mark; JSON itself does not allow one. Carriage returns are white space to JSON.
pub(super) fn without_bom(bytes: &[u8]) -> &[u8] {
    bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes)
}

/// A value as a person would call it: `the string "abc"`, `the number 0.5`, `an array of 3`.
pub(super) fn describe(value: &Value) -> String {
    match value {
        Value::Null => "null".into(),
        Value::Bool(flag) => flag.to_string(),
        Value::Number(number) => format!("the number {number}"),
        Value::String(text) => format!("the string {}", quote(text)),
        Value::Array(items) => format!("an array of {}", items.len()),
        Value::Object(_) => "an object".into(),
    }
}

/// A text in quotes, escaped and cut to a printable length.
pub(super) fn quote(text: &str) -> String {
    match text.char_indices().nth(QUOTED_MAX) {
        Some((end, _)) => format!("{:?}…", &text[..end]),
        None => format!("{text:?}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_texts_are_cut_at_a_character_boundary() {
        let quoted = quote(&"é".repeat(200));
        assert_eq!(quoted.chars().filter(|&c| c == 'é').count(), QUOTED_MAX);
    }
}
