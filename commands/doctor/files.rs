//! The files of a checkpoint, without loading them.

use std::fs::File;
use std::path::Path;

use dspark::checkpoint::{
    CONFIG_NAME, Checkpoint, CheckpointPaths, DrafterConfig, RECEIPT_NAME, Receipt, ReceiptFile,
};

use super::{Check, DoctorArgs, Verdict, gb};
use crate::output::{Output, count};

const NAME: &str = "checkpoint";
/// Bytes of the live drafter's files: its stages, the embedding and the head.
const LIVE_BYTES: u64 = 9_100_000_000;
/// Largest `config.json` that is read: the ledger inside has tens of megabytes.
const CONFIG_BYTES_MAX: u64 = 1 << 30;

/// Bytes that drafting needs.
pub(super) struct Need {
    /// Bytes of the weights.
    pub(super) weights: u64,
    /// Whose they are, in words.
    pub(super) whose: &'static str,
}

/// Looks at the checkpoint, where one is given; also says how much its weights take.
pub(super) fn check(args: &DoctorArgs, output: &Output) -> (Check, Need) {
    let live = Need { weights: LIVE_BYTES, whose: "the live drafter" };
    let Some(dir) = &args.checkpoint else {
        let none = Check::new(NAME, Verdict::Skipped, "none given");
        let hint = "--checkpoint DIR looks at one; 'dspark serve --demo' needs none";
        return (none.hint(hint), live);
    };
    let paths = CheckpointPaths {
        dir: dir.clone(),
        receipt: args.receipt.clone(),
        markov: args.markov.clone(),
    };
    match look(&paths) {
        Ok((detail, weights)) => {
            let need = Need { weights, whose: "the checkpoint" };
            (if args.verify { verify(&paths, detail, output) } else { unhashed(detail) }, need)
        }
        Err(check) => (check, live),
    }
}

fn unhashed(detail: String) -> Check {
    Check::new(NAME, Verdict::Ok, format!("{detail}; not hashed (--verify does)"))
}

fn verify(paths: &CheckpointPaths, detail: String, output: &Output) -> Check {
    match Checkpoint::open(paths, &output.progress()) {
        Ok(checkpoint) => match checkpoint.warnings.first() {
            Some(warning) => Check::new(NAME, Verdict::Warn, warning.clone()),
            None => Check::new(
                NAME,
                Verdict::Ok,
                format!("{detail}; hashed, drafter identity {}", checkpoint.identities.drafter),
            ),
        },
        Err(error) => failed(&error.to_string()),
    }
}

/// The first line is the detail, the others are the hint.
fn failed(error: &str) -> Check {
    let mut lines = error.lines().map(str::trim);
    let check = Check::new(NAME, Verdict::Failed, lines.next().unwrap_or_default());
    let rest: Vec<_> = lines.collect();
    if rest.is_empty() { check } else { check.hint(rest.join("; ")) }
}

/// Receipt, presence and sizes of what it lists, and the configuration. Gives the detail and the bytes of
/// the tensor files.
fn look(paths: &CheckpointPaths) -> Result<(String, u64), Check> {
    let receipt_path = paths.receipt_path();
    if !receipt_path.exists() {
        let detail = format!("{} does not exist", receipt_path.display());
        let hint =
            format!("{RECEIPT_NAME} is written beside the files; --receipt names another place");
        return Err(Check::new(NAME, Verdict::Missing, detail).hint(hint));
    }
    let receipt = Receipt::read(&receipt_path).map_err(|error| failed(&chain(&error)))?;
    let (mut weights, mut all, mut wrong) = (0_u64, 0_u64, Vec::new());
    let files = receipt.expected_files();
    for file in &files {
        match size(&paths.dir, file) {
            Ok(bytes) => {
                all = all.saturating_add(bytes);
                if Path::new(&file.name).extension().is_some_and(|e| e == "safetensors") {
                    weights = weights.saturating_add(bytes);
                }
            }
            Err(problem) => wrong.push(problem),
        }
    }
    if let Some(first) = wrong.first() {
        let others = match wrong.len() {
            1 => String::new(),
            n => format!("; {} more of {} files are wrong", n - 1, files.len()),
        };
        return Err(Check::new(NAME, Verdict::Failed, format!("{first}{others}"))
            .hint("copy the files again, or use the receipt that was written with them"));
    }
    let markov = match paths.markov_path().map(|path| (File::open(&path), path)) {
        Some((Err(error), path)) => return Err(failed(&format!("{}: {error}", path.display()))),
        Some((Ok(_), _)) => "with",
        None => "without",
    };
    let config = config(&paths.dir).map_err(|problem| failed(&problem))?;
    let detail = format!(
        "{} files, {} bytes; hidden {}, {} stages, vocabulary {}, {markov} Markov cache",
        files.len(),
        count(all),
        config.hidden,
        config.stages,
        config.vocab_size
    );
    Ok((detail, weights))
}

fn chain(error: &dyn std::error::Error) -> String {
    match error.source() {
        Some(source) if !error.to_string().contains(&source.to_string()) => {
            format!("{error}: {source}")
        }
        _ => error.to_string(),
    }
}

/// A file's bytes; it must be readable and, where the receipt says so, of that size.
fn size(dir: &Path, file: &ReceiptFile) -> Result<u64, String> {
    let name = &file.name;
    // Only opening tells whether it may be read.
    let found = File::open(dir.join(name))
        .and_then(|file| file.metadata())
        .map_err(|error| format!("{name}: {error}"))?;
    let bytes = found.len();
    match file.size {
        _ if !found.is_file() => Err(format!("{name}: is no file")),
        Some(expected) if expected != bytes => {
            Err(format!("{name}: has {} bytes, the receipt says {}", count(bytes), count(expected)))
        }
        _ => Ok(bytes),
    }
}

fn config(dir: &Path) -> Result<DrafterConfig, String> {
    let path = dir.join(CONFIG_NAME);
    let unread = |error: std::io::Error| format!("{CONFIG_NAME}: {error}");
    let bytes = path.metadata().map_err(unread)?.len();
    if bytes > CONFIG_BYTES_MAX {
        return Err(format!("{CONFIG_NAME}: has {}, no configuration is that large", gb(bytes)));
    }
    let text = std::fs::read(&path).map_err(unread)?;
    DrafterConfig::parse(&text).map_err(|error| error.to_string())
}
