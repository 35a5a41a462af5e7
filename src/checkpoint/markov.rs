//! `markov_top_tokens.json`: the token ids whose Markov bias rows are worth keeping ready (contract §11).
//!
//! The format is not fixed anywhere, so several spellings of "a list of token ids" are read. A file that is
//! none of them only costs speed: its identity is a digest of its bytes, and bias rows are then computed.

use std::collections::HashSet;
use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, Visitor};
use serde_json::Value;

use super::json::{describe, quote, without_bom};

/// Name of the Markov cache inside a checkpoint directory.
pub const MARKOV_NAME: &str = "markov_top_tokens.json";

/// Keys under which an object may hold its list.
const LIST_KEYS: [&str; 4] = ["tokens", "token_ids", "ids", "top_tokens"];

/// Token ids in the order of the file, each once, all inside the vocabulary.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MarkovCache {
    tokens: Vec<u32>,
}

/// Why a Markov cache file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum MarkovError {
    /// Neither a JSON array nor an object.
    #[error("is neither a JSON array nor an object: {0}")]
    Json(serde_json::Error),
    /// An entry that is no token id.
    #[error("{path} is {found}, expected a token id below {vocab_size}")]
    Token {
        /// Path of the entry.
        path: String,
        /// The entry in words.
        found: String,
        /// Vocabulary size.
        vocab_size: usize,
    },
    /// The value beside a token id is no count: it might be logits, which would change drafts.
    #[error("{path} is {found}, expected a count")]
    Count {
        /// Path of the value.
        path: String,
        /// The value in words.
        found: String,
    },
    /// The list is something else.
    #[error("{key} is {found}, expected an array of token ids")]
    List {
        /// The list's key.
        key: &'static str,
        /// The value in words.
        found: String,
    },
    /// Two lists, and nothing that says which one counts.
    #[error("has both {first} and {second}, expected one list of token ids")]
    Ambiguous {
        /// One key.
        first: &'static str,
        /// Another key.
        second: &'static str,
    },
}

impl MarkovCache {
    /// Reads a JSON array of ids, an array of `[id, count]` pairs, an object with one of these under
    /// `tokens`, `token_ids`, `ids` or `top_tokens`, or an object from ids to counts. Repeated ids count
    /// once, at their first place.
    ///
    /// # Errors
    /// Anything else, an id outside `0 .. vocab_size`, or a count that is no whole number.
    pub fn parse(bytes: &[u8], vocab_size: usize) -> Result<Self, MarkovError> {
        let bytes = without_bom(bytes);
        let mut list = Ids { vocab_size, seen: HashSet::new(), tokens: Vec::new() };
        if bytes.iter().find(|b| !b.is_ascii_whitespace()) == Some(&b'{') {
            let members: Members = serde_json::from_slice(bytes).map_err(MarkovError::Json)?;
            list.members(&members.0)?;
        } else {
            let items: Vec<Value> = serde_json::from_slice(bytes).map_err(MarkovError::Json)?;
            list.items("", &items)?;
        }
        Ok(Self { tokens: list.tokens })
    }

    /// The ids, each once and below the vocabulary size.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }
}

/// The members of an object in the order of the file.
struct Members(Vec<(String, Value)>);

impl<'de> Deserialize<'de> for Members {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct InOrder;

        impl<'de> Visitor<'de> for InOrder {
            type Value = Members;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Members, A::Error> {
                let mut members = Vec::new();
                while let Some(member) = map.next_entry()? {
                    members.push(member);
                }
                Ok(Members(members))
            }
        }

        deserializer.deserialize_map(InOrder)
    }
}

/// The list while it is collected.
struct Ids {
    vocab_size: usize,
    seen: HashSet<u32>,
    tokens: Vec<u32>,
}

impl Ids {
    fn members(&mut self, members: &[(String, Value)]) -> Result<(), MarkovError> {
        let mut lists = LIST_KEYS.iter().copied().filter_map(|key| {
            members.iter().find(|(name, _)| name == key).map(|(_, value)| (key, value))
        });
        match (lists.next(), lists.next()) {
            (Some((first, _)), Some((second, _))) => Err(MarkovError::Ambiguous { first, second }),
            (Some((key, Value::Array(items))), None) => self.items(key, items),
            (Some((key, other)), None) => Err(MarkovError::List { key, found: describe(other) }),
            (None, _) => members.iter().try_for_each(|(name, value)| {
                self.count(format_args!("{name}"), value)?;
                match name.parse::<u64>() {
                    Ok(id) => self.push(id, format_args!("key {}", quote(name))),
                    Err(_) => Err(self.refuse("key".into(), quote(name))),
                }
            }),
        }
    }

    fn items(&mut self, key: &str, items: &[Value]) -> Result<(), MarkovError> {
        for (index, item) in items.iter().enumerate() {
            match item {
                Value::Array(pair) if pair.len() == 2 => {
                    self.value(&pair[0], format_args!("{key}[{index}][0]"))?;
                    self.count(format_args!("{key}[{index}][1]"), &pair[1])?;
                }
                id => self.value(id, format_args!("{key}[{index}]"))?,
            }
        }
        Ok(())
    }

    fn value(&mut self, value: &Value, path: fmt::Arguments<'_>) -> Result<(), MarkovError> {
        match value.as_u64() {
            Some(id) => self.push(id, path),
            None => Err(self.refuse(path.to_string(), describe(value))),
        }
    }

    fn count(&self, path: fmt::Arguments<'_>, value: &Value) -> Result<(), MarkovError> {
        if value.is_u64() {
            return Ok(());
        }
        Err(MarkovError::Count { path: path.to_string(), found: describe(value) })
    }

    fn push(&mut self, id: u64, path: fmt::Arguments<'_>) -> Result<(), MarkovError> {
        let inside = usize::try_from(id).is_ok_and(|id| id < self.vocab_size);
        let Some(id) = u32::try_from(id).ok().filter(|_| inside) else {
            return Err(self.refuse(path.to_string(), format!("the number {id}")));
        };
        if self.seen.insert(id) {
            self.tokens.push(id);
        }
        Ok(())
    }

    fn refuse(&self, path: String, found: String) -> MarkovError {
        MarkovError::Token { path, found, vocab_size: self.vocab_size }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Vec<u32>, String> {
        match MarkovCache::parse(text.as_bytes(), 100) {
            Ok(cache) => Ok(cache.tokens().to_vec()),
            Err(error) => Err(error.to_string()),
        }
    }

    #[test]
    fn every_spelling_of_a_list_gives_the_ids_once_and_in_order() {
        for text in [
            "[7, 3, 99, 3, 7]",
            "\u{feff}\r\n[7,\r\n3, 99]",
            "[[7, 500], [3, 40], [99, 40]]",
            r#"{"version": 1, "tokens": [7, 3, 99]}"#,
            r#"{"token_ids": [7, 3, 99]}"#,
            r#"{"ids": [[7, 1], [3, 1], [99, 0]]}"#,
            r#"{"top_tokens": [7, 3, 99], "source": "x"}"#,
            r#" {"7": 500, "3": 40, "99": 40}"#,
        ] {
            assert_eq!(parse(text), Ok(vec![7, 3, 99]), "{text}");
        }
        assert_eq!(parse("[]"), Ok(vec![]));
    }

    #[test]
    fn what_is_no_list_of_token_ids_is_refused_with_its_place() {
        for (text, message) in [
            ("[5, 100]", "[1] is the number 100, expected a token id below 100"),
            ("[-1]", "[0] is the number -1, expected a token id below 100"),
            ("[1.0]", "[0] is the number 1.0, expected a token id below 100"),
            (
                "[18446744073709551615]",
                "[0] is the number 18446744073709551615, expected a token id below 100",
            ),
            (r#"["a"]"#, r#"[0] is the string "a", expected a token id below 100"#),
            ("[[1, 2, 3]]", "[0] is an array of 3, expected a token id below 100"),
            ("[[1, -0.5]]", "[0][1] is the number -0.5, expected a count"),
            (r#"{"5": [1, 2]}"#, "5 is an array of 2, expected a count"),
            (r#"{"five": 1}"#, r#"key is "five", expected a token id below 100"#),
            (r#"{"ids": 5}"#, "ids is the number 5, expected an array of token ids"),
            (
                r#"{"ids": [1], "tokens": [2]}"#,
                "has both tokens and ids, expected one list of token ids",
            ),
        ] {
            assert_eq!(parse(text), Err(message.into()), "{text}");
        }
        for text in ["", "5", "[1", "{", "null", "[1] x"] {
            assert!(parse(text).unwrap_err().starts_with("is neither"), "{text}");
        }
    }
}
