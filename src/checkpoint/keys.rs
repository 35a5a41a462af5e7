//! The keys of a `config.json`, looked up in `text_config` first.
//!
//! V4.1 nests the language model's keys; engines flatten them, so both places are legal. Other nested
//! objects, among them the quantization ledger, are skipped without being stored.

use std::collections::HashMap;
use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::Value;

use super::json::{describe, without_bom};

/// Name of the nested object.
const NESTED: &str = "text_config";

/// Why a key has no usable value.
#[derive(Debug, thiserror::Error)]
pub enum KeysError {
    /// Not a JSON object, or `text_config` is none.
    #[error("is not a JSON object: {0}")]
    Json(serde_json::Error),
    /// No value, here or under an alias.
    #[error("{key} is missing")]
    Missing {
        /// The key, the first one where there are aliases.
        key: &'static str,
    },
    /// A value of another type.
    #[error("{key} is {found}, expected {expected}")]
    Type {
        /// The key as the file spells it.
        key: &'static str,
        /// The value in words.
        found: String,
        /// The type in words.
        expected: &'static str,
    },
}

/// The top-level object and the nested one. Null counts as absent.
pub(super) struct Keys {
    nested: HashMap<String, Value>,
    top: HashMap<String, Value>,
}

impl Keys {
    /// # Errors
    /// The bytes are no JSON object.
    pub(super) fn parse(json: &[u8]) -> Result<Self, KeysError> {
        let top: Object = serde_json::from_slice(without_bom(json)).map_err(KeysError::Json)?;
        let nested = top.nested.map(|object| object.members).unwrap_or_default();
        Ok(Self { nested, top: top.members })
    }

    /// A count or id under the first of `keys` that has a value.
    pub(super) fn size(&self, keys: &[&'static str]) -> Result<usize, KeysError> {
        self.optional_size(keys)?.ok_or(KeysError::Missing { key: keys[0] })
    }

    pub(super) fn size_or(
        &self,
        keys: &[&'static str],
        default: usize,
    ) -> Result<usize, KeysError> {
        Ok(self.optional_size(keys)?.unwrap_or(default))
    }

    fn optional_size(&self, keys: &[&'static str]) -> Result<Option<usize>, KeysError> {
        let found = keys.iter().find_map(|key| Some((*key, self.get(key)?)));
        let Some((key, value)) = found else { return Ok(None) };
        let size = value.as_u64().and_then(|size| usize::try_from(size).ok());
        size.map(Some).ok_or_else(|| wrong(key, value, "a whole number"))
    }

    /// A number; rounded to the nearest single.
    pub(super) fn single(&self, key: &'static str, default: Option<f64>) -> Result<f32, KeysError> {
        // Out of range becomes infinite or zero, which the caller's bounds refuse.
        Ok(self.double(key, default)? as f32)
    }

    pub(super) fn double(&self, key: &'static str, default: Option<f64>) -> Result<f64, KeysError> {
        match self.get(key) {
            Some(value) => value.as_f64().ok_or_else(|| wrong(key, value, "a number")),
            None => default.ok_or(KeysError::Missing { key }),
        }
    }

    pub(super) fn flag_or(&self, key: &'static str, default: bool) -> Result<bool, KeysError> {
        match self.get(key) {
            Some(value) => value.as_bool().ok_or_else(|| wrong(key, value, "true or false")),
            None => Ok(default),
        }
    }

    pub(super) fn word<'a>(
        &'a self,
        key: &'static str,
        default: Option<&'a str>,
    ) -> Result<&'a str, KeysError> {
        match self.get(key) {
            Some(value) => value.as_str().ok_or_else(|| wrong(key, value, "a word")),
            None => default.ok_or(KeysError::Missing { key }),
        }
    }

    /// An array of unsigned numbers.
    pub(super) fn ids(&self, key: &'static str) -> Result<Vec<u32>, KeysError> {
        self.ids_or_none(key)?.ok_or(KeysError::Missing { key })
    }

    pub(super) fn ids_or_none(&self, key: &'static str) -> Result<Option<Vec<u32>>, KeysError> {
        const EXPECTED: &str = "an array of ids";
        let Some(value) = self.get(key) else { return Ok(None) };
        let items = value.as_array().ok_or_else(|| wrong(key, value, EXPECTED))?;
        let id = |item: &Value| item.as_u64().and_then(|id| u32::try_from(id).ok());
        let ids = items.iter().map(|item| id(item).ok_or_else(|| wrong(key, item, EXPECTED)));
        ids.collect::<Result<_, _>>().map(Some)
    }

    /// The value of a key in words, if it has one.
    pub(super) fn describe(&self, key: &str) -> Option<String> {
        self.get(key).map(describe)
    }

    fn get(&self, key: &str) -> Option<&Value> {
        self.nested.get(key).or_else(|| self.top.get(key))
    }
}

fn wrong(key: &'static str, value: &Value, expected: &'static str) -> KeysError {
    KeysError::Type { key, found: describe(value), expected }
}

/// An object whose nested objects, except `text_config`, are dropped.
struct Object {
    members: HashMap<String, Value>,
    nested: Option<Box<Object>>,
}

impl<'de> Deserialize<'de> for Object {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Members;

        impl<'de> Visitor<'de> for Members {
            type Value = Object;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Object, A::Error> {
                let mut object = Object { members: HashMap::new(), nested: None };
                while let Some(key) = map.next_key::<String>()? {
                    if key == NESTED {
                        object.nested = map.next_value()?;
                        continue;
                    }
                    let Shallow(value) = map.next_value()?;
                    if !value.is_null() {
                        object.members.insert(key, value);
                    }
                }
                Ok(object)
            }
        }

        deserializer.deserialize_map(Members)
    }
}

/// A value in which every object is empty.
struct Shallow(Value);

impl<'de> Deserialize<'de> for Shallow {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ShallowVisitor).map(Shallow)
    }
}

struct ShallowVisitor;

impl<'de> Visitor<'de> for ShallowVisitor {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E: Error>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E: Error>(self, flag: bool) -> Result<Value, E> {
        Ok(flag.into())
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<Value, E> {
        Ok(number.into())
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<Value, E> {
        Ok(number.into())
    }

    fn visit_f64<E: Error>(self, number: f64) -> Result<Value, E> {
        Ok(number.into())
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Value, E> {
        Ok(text.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut array = Vec::new();
        while let Some(Shallow(item)) = items.next_element()? {
            array.push(item);
        }
        Ok(array.into())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Value, A::Error> {
        while members.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(serde_json::Map::new().into())
    }
}
