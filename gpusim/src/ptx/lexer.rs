//! PTX text to tokens.
//!
//! An opcode with its suffixes (`mad.lo.s32`), a directive (`.reg`), a special register
//! (`%tid.x`) and a number are one word each; everything else is punctuation.

use super::PtxError;

/// What a token is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TokenKind<'a> {
    Word(&'a str),
    Punct(char),
    /// The inside of a quoted string.
    Text(&'a str),
}

/// A token and the line it stands on, from 1.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Token<'a> {
    pub(crate) line: u32,
    pub(crate) kind: TokenKind<'a>,
}

/// Splits a module's text.
///
/// # Errors
/// On an unclosed comment or string and on a character PTX does not have.
pub(crate) fn tokenize(source: &str) -> Result<Vec<Token<'_>>, PtxError> {
    let mut tokens = Vec::new();
    let mut line = 1;
    let mut rest = source;
    while let Some(first) = rest.chars().next() {
        let length = if first == '\n' {
            line += 1;
            1
        } else if first.is_whitespace() {
            first.len_utf8()
        } else if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if rest.starts_with("/*") {
            let end =
                rest.find("*/").ok_or_else(|| PtxError::new(line, "comment is not closed"))?;
            line += newlines(&rest[..end]);
            end + 2
        } else if first == '"' {
            let end = rest[1..].find('"').ok_or_else(|| PtxError::new(line, "open string"))?;
            tokens.push(Token { line, kind: TokenKind::Text(&rest[1..=end]) });
            line += newlines(&rest[..end]);
            end + 2
        } else if is_word(first) {
            let length = word_length(rest);
            tokens.push(Token { line, kind: TokenKind::Word(&rest[..length]) });
            length
        } else if first.is_ascii_punctuation() {
            tokens.push(Token { line, kind: TokenKind::Punct(first) });
            1
        } else {
            return Err(PtxError::new(line, format!("unexpected character {first:?}")));
        };
        rest = &rest[length..];
    }
    Ok(tokens)
}

fn newlines(text: &str) -> u32 {
    text.matches('\n').count() as u32 // a module has far fewer than 2^32 lines
}

fn is_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '_' | '$' | '%' | '.')
}

/// Length of the word at the start of `text`; `::` continues a word, as in `shared::cta`.
fn word_length(text: &str) -> usize {
    let bytes = text.as_bytes();
    let mut at = 0;
    while at < bytes.len() {
        if is_word(char::from(bytes[at])) {
            at += 1;
        } else if bytes[at..].starts_with(b"::") {
            at += 2;
        } else {
            break;
        }
    }
    at
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_keep_their_dots_and_lines_are_counted() {
        let tokens = tokenize("// head\nmad.lo.s32 %r1, %tid.x, -4; /* a\nb */ $L:").unwrap();
        let words: Vec<_> = tokens
            .iter()
            .filter_map(|token| match token.kind {
                TokenKind::Word(word) => Some((token.line, word)),
                _ => None,
            })
            .collect();
        assert_eq!(words, [(2, "mad.lo.s32"), (2, "%r1"), (2, "%tid.x"), (2, "4"), (3, "$L")]);
    }
}
