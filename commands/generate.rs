//! `dspark completions` and `dspark man`: shell scripts and manual pages made from the commands' own
//! definitions. The committed folders `completions/` and `man/` are what they print.

use std::ffi::OsStr;
use std::io;
use std::path::PathBuf;

use clap::{Args, Command};
use clap_complete::Shell;
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, roman};
use serde_json::json;

use crate::environment::FLAGLESS;
use crate::exit::{CODES, Code, Failure, Outcome};
use crate::output::Output;

const COMPLETIONS_EXAMPLES: &str = "\
Examples:
  dspark completions bash > /etc/bash_completion.d/dspark
  dspark completions zsh > /usr/local/share/zsh/site-functions/_dspark
  dspark completions fish > ~/.config/fish/completions/dspark.fish";

const MAN_EXAMPLES: &str = "\
Examples:
  dspark man /usr/local/share/man/man1
  dspark man man && man -l man/dspark-serve.1";

/// Arguments of `dspark completions`.
#[derive(Args, Debug)]
#[command(after_help = COMPLETIONS_EXAMPLES)]
pub(crate) struct CompletionsArgs {
    /// Shell to complete in
    #[arg(value_name = "SHELL", conflicts_with = "json")]
    shell: Shell,
}

/// Arguments of `dspark man`.
#[derive(Args, Debug)]
#[command(after_help = MAN_EXAMPLES)]
pub(crate) struct ManArgs {
    /// Directory to write to; it is made if it does not exist, and pages in it are replaced
    #[arg(value_name = "DIR", value_hint = clap::ValueHint::DirPath)]
    dir: PathBuf,
}

/// Prints the completion script of a shell.
pub(crate) fn completions(args: &CompletionsArgs, mut dspark: Command, output: &Output) -> Outcome {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut dspark, "dspark", &mut script);
    Ok(output.line(String::from_utf8_lossy(&script).trim_end())?)
}

/// Writes the manual pages and prints their paths.
pub(crate) fn man(args: &ManArgs, dspark: Command, output: &Output) -> Outcome {
    let unwritable = |path: &PathBuf, error: io::Error| {
        Failure::new(Code::BadInput, format!("{}: cannot be written: {error}", path.display()))
    };
    let mut dspark = dspark.disable_help_subcommand(true);
    dspark.build();
    let mut pages = Vec::new();
    collect(&dspark, &[], &mut pages);
    std::fs::create_dir_all(&args.dir).map_err(|error| unwritable(&args.dir, error))?;
    let mut files = Vec::new();
    for page in pages {
        let path = args.dir.join(page.man.get_filename());
        let text = page.render().map_err(|error| unwritable(&path, error))?;
        std::fs::write(&path, text).map_err(|error| unwritable(&path, error))?;
        files.push(path.display().to_string());
    }
    if output.json() {
        output.document(&json!({ "schema": 1, "files": files }), false)?;
    } else {
        output.line(files.join("\n"))?;
    }
    Ok(())
}

/// One command's page.
struct Page<'a> {
    command: &'a Command,
    /// The page of each command above it.
    above: Vec<String>,
    man: Man,
}

/// The pages of a command and of those below it.
fn collect<'a>(command: &'a Command, above: &[String], pages: &mut Vec<Page<'a>>) {
    let usage = command.clone().render_usage().to_string();
    let usage = usage.trim_start_matches("Usage: ").to_owned();
    let shown = command.clone().override_usage(usage).subcommand_help_heading("COMMANDS");
    pages.push(Page { command, above: above.to_vec(), man: Man::new(shown) });
    let above = [above, &[format!("{}(1)", page_name(command))]].concat();
    command.get_subcommands().for_each(|below| collect(below, &above, pages));
}

/// `dspark-trace-cut` of `dspark trace cut`.
fn page_name(command: &Command) -> &str {
    command.get_display_name().unwrap_or_else(|| command.get_name())
}

impl Page<'_> {
    fn render(&self) -> io::Result<String> {
        let mut text = Vec::new();
        self.man.render_name_section(&mut text)?;
        self.man.render_synopsis_section(&mut text)?;
        self.man.render_description_section(&mut text)?;
        self.remarks().to_writer(&mut text)?;
        if self.command.has_subcommands() {
            self.man.render_subcommands_section(&mut text)?;
        }
        self.man.render_options_section(&mut text)?;
        let mut rest = Roff::new();
        self.environment(&mut rest);
        exit_status(&mut rest);
        self.examples(&mut rest);
        self.see_also(&mut rest);
        rest.to_writer(&mut text)?;
        // Every section brings the definition of the apostrophe along; a page needs one, before its title.
        let apostrophe = Roff::new().render();
        let text = String::from_utf8_lossy(&text).replace(&apostrophe, "");
        let title = page_name(self.command).to_uppercase();
        let version = env!("CARGO_PKG_VERSION");
        // No date: the same program prints the same page on any day.
        let title = format!(".TH {title} 1 \"\" \"dspark {version}\" \"DSpark manual\"\n");
        Ok([apostrophe, title, text].concat())
    }

    /// What the help says below the options.
    fn below_the_options(&self) -> String {
        self.command.get_after_help().map(ToString::to_string).unwrap_or_default()
    }

    /// The prose before the examples, as a paragraph of the description.
    fn remarks(&self) -> Roff {
        let text = self.below_the_options();
        let prose = text.split(EXAMPLES).next().unwrap_or_default().trim();
        let mut roff = Roff::new();
        if !prose.is_empty() {
            roff.control("PP", []);
            prose.lines().for_each(|line| _ = roff.text([roman(line)]));
        }
        roff
    }

    /// Variables of this command's flags, then those that every command reads.
    fn environment(&self, roff: &mut Roff) {
        roff.control("SH", ["ENVIRONMENT"]);
        let flags = self.command.get_arguments().filter_map(|arg| {
            let name = arg.get_env().and_then(OsStr::to_str)?;
            let flag = match (arg.get_long(), arg.get_value_names()) {
                (Some(long), _) => format!("--{long}"),
                (None, names) => names.unwrap_or_default().join(" "),
            };
            Some((name.to_owned(), format!("Same as {flag}; what the command line says wins.")))
        });
        let common = FLAGLESS.map(|(name, what)| (name.to_owned(), what.to_owned()));
        for (name, what) in flags.chain(common) {
            roff.control("TP", []).text([bold(name)]).text([roman(what)]);
        }
    }

    fn examples(&self, roff: &mut Roff) {
        let text = self.below_the_options();
        let Some((_, examples)) = text.split_once(EXAMPLES) else { return };
        roff.control("SH", ["EXAMPLES"]).control("EX", []);
        for line in examples.lines().take_while(|line| !line.is_empty()) {
            roff.text([roman(line.trim_start())]);
        }
        roff.control("EE", []);
    }

    fn see_also(&self, roff: &mut Roff) {
        if !self.above.is_empty() {
            roff.control("SH", ["SEE ALSO"]).text([roman(self.above.join(", "))]);
        }
    }
}

/// Begins the examples in the help of every command.
const EXAMPLES: &str = "Examples:\n";

fn exit_status(roff: &mut Roff) {
    roff.control("SH", ["EXIT STATUS"]);
    for (code, meaning) in CODES {
        roff.control("TP", []).text([bold((code as u8).to_string())]).text([roman(meaning)]);
    }
}
