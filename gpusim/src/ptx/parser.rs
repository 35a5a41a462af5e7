//! Tokens to a syntax tree.

use super::lexer::{Token, TokenKind, tokenize};
use super::types::Type;
use super::{Function, Item, Module, Operand, PtxError, RegisterNames, Space, Statement, Variable};

/// Parses a module.
///
/// # Errors
/// When the text is not PTX or uses a construct the emulator does not have.
pub(crate) fn parse(source: &str) -> Result<Module, PtxError> {
    let mut parser = Parser { tokens: tokenize(source)?, at: 0 };
    let mut module = Module::default();
    while parser.at < parser.tokens.len() {
        parser.module_item(&mut module)?;
    }
    Ok(module)
}

struct Parser<'a> {
    tokens: Vec<Token<'a>>,
    at: usize,
}

impl<'a> Parser<'a> {
    fn module_item(&mut self, module: &mut Module) -> Result<(), PtxError> {
        let mut is_extern = false;
        loop {
            let Some(word) = self.peek_word() else { return Err(self.unexpected("a directive")) };
            match word {
                ".version" | ".target" | ".address_size" | ".file" | ".loc" => {
                    self.skip_line();
                    return Ok(());
                }
                ".section" => {
                    self.skip_section();
                    return Ok(());
                }
                ".visible" | ".weak" | ".common" => self.at += 1,
                ".extern" => {
                    is_extern = true;
                    self.at += 1;
                }
                ".entry" | ".func" => {
                    let function = self.function(word == ".entry")?;
                    module.functions.extend(function.filter(|_| !is_extern));
                    return Ok(());
                }
                ".global" | ".const" | ".shared" => {
                    let variable = self.variable()?;
                    module.variables.push(variable);
                    return self.expect(';');
                }
                _ => return Err(self.unexpected("a module directive")),
            }
        }
    }

    /// A function; `None` for a declaration without body.
    fn function(&mut self, is_entry: bool) -> Result<Option<Function>, PtxError> {
        self.at += 1;
        let returns = if self.peek_is('(') { self.parameters()? } else { Vec::new() };
        let name = self.word()?.to_string();
        let params = if self.peek_is('(') { self.parameters()? } else { Vec::new() };
        let mut max_threads = None;
        loop {
            match self.peek() {
                Some(TokenKind::Punct(';')) => {
                    self.at += 1;
                    return Ok(None);
                }
                Some(TokenKind::Punct('{')) => break,
                Some(TokenKind::Word(".maxntid" | ".reqntid")) => {
                    self.at += 1;
                    max_threads = Some(self.dimensions()?);
                }
                Some(TokenKind::Word(".minnctapersm" | ".maxnreg" | ".maxnctapersm")) => {
                    self.at += 2;
                }
                Some(TokenKind::Word(".noreturn")) => self.at += 1,
                Some(TokenKind::Word(".pragma")) => self.skip_past(';'),
                _ => return Err(self.unexpected("a function body")),
            }
        }
        self.at += 1;
        let body = self.body()?;
        Ok(Some(Function { name, is_entry, returns, params, max_threads, body }))
    }

    fn dimensions(&mut self) -> Result<u32, PtxError> {
        let mut product = 1u32;
        loop {
            let line = self.line();
            let value: u32 =
                self.word()?.parse().map_err(|_| PtxError::new(line, "a number is expected"))?;
            product = product.saturating_mul(value);
            if !self.take(',') {
                return Ok(product);
            }
        }
    }

    fn parameters(&mut self) -> Result<Vec<Variable>, PtxError> {
        self.expect('(')?;
        let mut parameters = Vec::new();
        while !self.take(')') {
            parameters.push(self.variable()?);
            self.take(',');
        }
        Ok(parameters)
    }

    /// `.space [.align n] .type name[n]… [= initialiser]`
    fn variable(&mut self) -> Result<Variable, PtxError> {
        let space = match self.word()? {
            ".global" => Space::Global,
            ".const" => Space::Const,
            ".shared" => Space::Shared,
            ".local" => Space::Local,
            ".param" | ".reg" => Space::Param,
            other => return Err(self.error(format!("unknown state space {other}"))),
        };
        let mut align = None;
        let mut ty = None;
        let mut lanes = 1;
        while let Some(word) = self.peek_word().filter(|word| word.starts_with('.')) {
            self.at += 1;
            match word {
                ".align" => align = Some(self.number()? as usize),
                ".ptr" | ".global" | ".const" | ".shared" | ".local" | ".attribute" => {}
                ".v2" => lanes = 2,
                ".v4" => lanes = 4,
                _ => ty = Type::parse(&word[1..]),
            }
        }
        let Some(ty) = ty else { return Err(self.error("a variable without type")) };
        let name = self.word()?.to_string();
        let element = ty.bytes() * lanes;
        let mut count = 1;
        while self.take('[') {
            count *= if self.peek_is(']') { 0 } else { self.number()? as usize };
            self.expect(']')?;
        }
        let initial = if self.take('=') { self.initialiser(ty)? } else { Vec::new() };
        if count == 0 {
            // `name[] = {…}` takes its size from the values.
            count = initial.len() / element;
        }
        let align = align.unwrap_or(element);
        Ok(Variable { space, name, align, bytes: element * count, initial })
    }

    fn initialiser(&mut self, ty: Type) -> Result<Vec<u8>, PtxError> {
        let mut bytes = Vec::new();
        if self.take('{') {
            while !self.take('}') {
                bytes.extend(self.initialiser(ty)?);
                self.take(',');
            }
            return Ok(bytes);
        }
        let value = match self.operand()? {
            Operand::Int(value) => value,
            Operand::F32(bits) => u64::from(bits),
            Operand::F64(bits) => bits,
            other => return Err(self.error(format!("initialiser {other:?} is not a number"))),
        };
        bytes.extend(&value.to_le_bytes()[..ty.bytes().min(8)]);
        Ok(bytes)
    }

    fn body(&mut self) -> Result<Vec<Item>, PtxError> {
        let mut items = Vec::new();
        let mut depth = 1;
        loop {
            match self.peek() {
                None => return Err(self.error("the function body is not closed")),
                Some(TokenKind::Punct('{')) => {
                    self.at += 1;
                    depth += 1;
                    items.push(Item::Open);
                }
                Some(TokenKind::Punct('}')) => {
                    self.at += 1;
                    depth -= 1;
                    if depth == 0 {
                        return Ok(items);
                    }
                    items.push(Item::Close);
                }
                Some(TokenKind::Punct(';')) => self.at += 1,
                Some(TokenKind::Punct('@')) => items.push(Item::Statement(self.statement()?)),
                Some(TokenKind::Word(word)) => {
                    if let Some(item) = self.body_word(word)? {
                        items.push(item);
                    }
                }
                Some(_) => return Err(self.unexpected("an instruction")),
            }
        }
    }

    fn body_word(&mut self, word: &str) -> Result<Option<Item>, PtxError> {
        match word {
            ".reg" => return self.registers().map(Some),
            ".loc" | ".file" => self.skip_line(),
            ".pragma" => self.skip_past(';'),
            ".local" | ".shared" | ".param" => {
                let variable = self.variable()?;
                self.expect(';')?;
                return Ok(Some(Item::Variable(variable)));
            }
            _ if word.starts_with('.') => return Err(self.unexpected("a directive")),
            _ if self.peek_at(1) == Some(TokenKind::Punct(':')) => {
                self.at += 2;
                if self.peek_word() == Some(".branchtargets") {
                    self.at += 1;
                    let targets = self.names_until_semicolon()?;
                    return Ok(Some(Item::BranchTargets { label: word.to_string(), targets }));
                }
                return Ok(Some(Item::Label(word.to_string())));
            }
            _ => return self.statement().map(|statement| Some(Item::Statement(statement))),
        }
        Ok(None)
    }

    fn registers(&mut self) -> Result<Item, PtxError> {
        self.at += 1;
        let word = self.word()?;
        let ty = Type::parse(word.trim_start_matches('.'))
            .ok_or_else(|| self.error(format!("unknown register type {word}")))?;
        let mut names = Vec::new();
        loop {
            let name = self.word()?.to_string();
            let count = if self.take('<') {
                let count = self.number()? as usize;
                self.expect('>')?;
                Some(count)
            } else {
                None
            };
            names.push(RegisterNames { name, count });
            if !self.take(',') {
                self.expect(';')?;
                return Ok(Item::Registers { ty, names });
            }
        }
    }

    fn names_until_semicolon(&mut self) -> Result<Vec<String>, PtxError> {
        let mut names = Vec::new();
        loop {
            names.push(self.word()?.to_string());
            if !self.take(',') {
                self.expect(';')?;
                return Ok(names);
            }
        }
    }

    fn statement(&mut self) -> Result<Statement, PtxError> {
        let mut guard = None;
        if self.take('@') {
            let negated = self.take('!');
            guard = Some((self.word()?.to_string(), negated));
        }
        let line = self.line();
        let opcode = self.word()?.split('.').map(str::to_string).collect();
        let mut operands = Vec::new();
        if !self.take(';') {
            loop {
                operands.push(self.operand()?);
                if !self.take(',') {
                    self.expect(';')?;
                    break;
                }
            }
        }
        Ok(Statement { line, guard, opcode, operands })
    }

    fn operand(&mut self) -> Result<Operand, PtxError> {
        if self.take('{') {
            return self.operands_until('}').map(Operand::Vector);
        }
        if self.take('(') {
            return self.operands_until(')').map(Operand::List);
        }
        if self.take('!') {
            return Ok(Operand::Not(Box::new(self.operand()?)));
        }
        if self.take('[') {
            return self.address();
        }
        let first = self.simple()?;
        if self.take('|') {
            return Ok(Operand::Pair(Box::new(first), Box::new(self.simple()?)));
        }
        if self.peek_is('+')
            && let Operand::Name(_) = first
        {
            // `symbol + 8` outside of brackets: an address as a value.
            self.at += 1;
            let offset = self.offset()?;
            return Ok(Operand::Address { base: Box::new(first), offset });
        }
        Ok(first)
    }

    fn operands_until(&mut self, close: char) -> Result<Vec<Operand>, PtxError> {
        let mut operands = Vec::new();
        while !self.take(close) {
            operands.push(self.operand()?);
            self.take(',');
        }
        Ok(operands)
    }

    fn address(&mut self) -> Result<Operand, PtxError> {
        let base = self.simple()?;
        let mut offset = 0;
        if self.take('+') {
            offset = self.offset()?;
        } else if self.take('-') {
            offset = -self.offset()?;
        }
        self.expect(']')?;
        Ok(Operand::Address { base: Box::new(base), offset })
    }

    fn offset(&mut self) -> Result<i64, PtxError> {
        match self.simple()? {
            Operand::Int(value) => Ok(value.cast_signed()),
            other => Err(self.error(format!("offset {other:?} is not a number"))),
        }
    }

    /// A name or a number.
    fn simple(&mut self) -> Result<Operand, PtxError> {
        if self.take('-') {
            return match self.simple()? {
                Operand::Int(value) => Ok(Operand::Int(value.wrapping_neg())),
                other => Err(self.error(format!("-{other:?} is not a number"))),
            };
        }
        let word = self.word()?;
        if !word.starts_with(|c: char| c.is_ascii_digit()) {
            return Ok(Operand::Name(word.to_string()));
        }
        literal(word).ok_or_else(|| self.error(format!("number {word} is not understood")))
    }

    fn number(&mut self) -> Result<u64, PtxError> {
        match self.simple()? {
            Operand::Int(value) => Ok(value),
            other => Err(self.error(format!("{other:?} is not a number"))),
        }
    }

    fn peek_at(&self, ahead: usize) -> Option<TokenKind<'a>> {
        self.tokens.get(self.at + ahead).map(|token| token.kind)
    }

    fn peek(&self) -> Option<TokenKind<'a>> {
        self.peek_at(0)
    }

    fn peek_word(&self) -> Option<&'a str> {
        match self.peek() {
            Some(TokenKind::Word(word)) => Some(word),
            _ => None,
        }
    }

    fn peek_is(&self, punct: char) -> bool {
        self.peek() == Some(TokenKind::Punct(punct))
    }

    fn take(&mut self, punct: char) -> bool {
        let found = self.peek_is(punct);
        self.at += usize::from(found);
        found
    }

    fn expect(&mut self, punct: char) -> Result<(), PtxError> {
        if self.take(punct) { Ok(()) } else { Err(self.unexpected(&format!("'{punct}'"))) }
    }

    fn word(&mut self) -> Result<&'a str, PtxError> {
        let Some(word) = self.peek_word() else { return Err(self.unexpected("a name")) };
        self.at += 1;
        Ok(word)
    }

    fn line(&self) -> u32 {
        let index = self.at.min(self.tokens.len().saturating_sub(1));
        self.tokens.get(index).map_or(0, |token| token.line)
    }

    /// Directives such as `.loc` end with their line.
    fn skip_line(&mut self) {
        let line = self.line();
        while self.tokens.get(self.at).is_some_and(|token| token.line == line) {
            self.at += 1;
        }
    }

    fn skip_past(&mut self, punct: char) {
        while self.at < self.tokens.len() && !self.take(punct) {
            self.at += 1;
        }
    }

    /// `.section name { … }` holds debug data only.
    fn skip_section(&mut self) {
        self.skip_past('}');
    }

    fn error(&self, what: impl Into<String>) -> PtxError {
        PtxError::new(self.line(), what)
    }

    fn unexpected(&self, wanted: &str) -> PtxError {
        self.error(format!("{wanted} is expected, found {:?}", self.peek()))
    }
}

/// `12`, `0x1F`, `017`, `12U`, `0f3F800000`, `0d3FF0000000000000`, `1.5`.
fn literal(word: &str) -> Option<Operand> {
    if let Some(hex) = word.strip_prefix("0f").or_else(|| word.strip_prefix("0F")) {
        return u32::from_str_radix(hex, 16).ok().map(Operand::F32);
    }
    if let Some(hex) = word.strip_prefix("0d").or_else(|| word.strip_prefix("0D")) {
        return u64::from_str_radix(hex, 16).ok().map(Operand::F64);
    }
    if word.contains('.') {
        return word.parse().ok().map(|value: f64| Operand::F64(value.to_bits()));
    }
    let digits = word.trim_end_matches('U');
    let value = if let Some(hex) = digits.strip_prefix("0x").or_else(|| digits.strip_prefix("0X")) {
        u64::from_str_radix(hex, 16)
    } else if digits.len() > 1 && digits.starts_with('0') {
        u64::from_str_radix(digits, 8)
    } else {
        digits.parse()
    };
    value.ok().map(Operand::Int)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOURCE: &str = r#"
.version 7.0
.target sm_80
.address_size 64
.extern .shared .align 16 .b8 tile[];
.const .align 4 .b8 table[8] = {1, 2, 0x03};
.visible .entry k(
	.param .u64 k_param_0,
	.param .align 8 .b8 k_param_1[12]
)
.maxntid 128, 1, 1
.minnctapersm 2
{
	.reg .pred 	%p<2>;
	.reg .b32 	%r<4>, extra;
	.loc	1 7 3
	ld.param.u32 	%r1, [k_param_1+-4];
$L__BB0_1:
	@!%p1 bra 	$L__BB0_1;
	{ .reg .b16 low; mov.b32 {low, _}, %r1; }
	shfl.sync.bfly.b32 %r2|%p1, %r1, 1, 31, -1;
	fma.rn.f32 %r1, 0f3F800000, %r2, %r2;
	ret;
}
"#;

    #[test]
    fn a_module_is_read_with_scopes_labels_and_operands() {
        let module = parse(SOURCE).unwrap();
        assert_eq!(module.variables[0].bytes, 0);
        assert_eq!(
            (module.variables[1].bytes, &module.variables[1].initial[..]),
            (8, &[1, 2, 3][..])
        );
        let kernel = &module.functions[0];
        assert_eq!(
            (kernel.params.len(), kernel.params[1].bytes, kernel.max_threads),
            (2, 12, Some(128))
        );
        let statements: Vec<&Statement> = kernel
            .body
            .iter()
            .filter_map(|item| match item {
                Item::Statement(statement) => Some(statement),
                _ => None,
            })
            .collect();
        assert_eq!(statements.len(), 6);
        assert_eq!(statements[1].guard, Some(("%p1".to_string(), true)));
        let Operand::Address { offset, .. } = statements[0].operands[1] else { panic!("address") };
        assert_eq!(offset, -4);
        assert!(matches!(statements[3].operands[0], Operand::Pair(..)));
        assert_eq!(statements[3].operands[4], Operand::Int(u64::MAX));
        assert_eq!(statements[4].operands[1], Operand::F32(0x3F80_0000));
    }

    #[test]
    fn numbers_are_read_in_every_notation() {
        let f64_bits = |value: f64| Some(Operand::F64(value.to_bits()));
        assert_eq!(literal("0x1F"), Some(Operand::Int(31)));
        assert_eq!(literal("017"), Some(Operand::Int(15)));
        assert_eq!(literal("12U"), Some(Operand::Int(12)));
        assert_eq!(literal("0f3F800000"), Some(Operand::F32(1f32.to_bits())));
        assert_eq!(literal("0d3FF0000000000000"), f64_bits(1.0));
        assert_eq!(literal("1.5"), f64_bits(1.5));
        assert_eq!(literal("1.5x"), None);
    }

    #[test]
    fn an_error_names_its_line() {
        let error =
            parse(".version 7.0\n.visible .entry k()\n{\n  add.s32 %r1 %r2;\n}").unwrap_err();
        assert_eq!(error.line, 4);
    }
}
