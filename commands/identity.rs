//! `dspark identity`: both digests that HELLO exchanges, and whether files on disk match the receipt.

use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use dspark::checkpoint::{
    Difference, Identities, Receipt, VerifyError, identity_lines, read_markov, verify_directory,
};
use dspark::digest::Sha256Digest;
use serde_json::{Value, json};

use crate::exit::{Code, Failure, OrExit, Outcome};
use crate::output::{Output, count};

const EXAMPLES: &str = "\
Examples:
  dspark identity --receipt DSPARK_COPY_DONE
  export VLLM_DSPARK_REMOTE_IDENTITY=$(dspark identity --receipt DSPARK_COPY_DONE --only drafter)
  dspark identity --receipt DSPARK_COPY_DONE --verify /data/dspark/pack";

/// Arguments of `dspark identity`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct IdentityArgs {
    /// Copy receipt (DSPARK_COPY_DONE); '-' reads stdin
    #[arg(long, value_name = "FILE", env = "DSPARK_RECEIPT", hide_env_values = true)]
    receipt: PathBuf,
    /// Markov cache to hash; 64 zeros are printed when none is given
    #[arg(long, value_name = "FILE", env = "DSPARK_MARKOV", hide_env_values = true)]
    markov: Option<PathBuf>,
    /// Also hash the extracted files in DIR and compare them with the receipt
    #[arg(long, value_name = "DIR")]
    verify: Option<PathBuf>,
    /// Print one bare digest and nothing else
    #[arg(long, value_name = "WHICH")]
    only: Option<Which>,
    /// Exit with 1 unless the drafter identity is HEX
    #[arg(long, value_name = "HEX")]
    expect_drafter: Option<Sha256Digest>,
    /// Exit with 1 unless the Markov identity is HEX
    #[arg(long, value_name = "HEX")]
    expect_markov: Option<Sha256Digest>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Which {
    Drafter,
    Markov,
}

/// Prints the identities.
pub(crate) fn run(args: IdentityArgs, output: &Output) -> Outcome {
    let receipt = read_receipt(&args.receipt)?;
    let markov = args.markov.as_deref().map(read_markov).transpose().or_exit(Code::BadInput)?;
    let identities = Identities::of(&receipt, markov.as_deref());
    let verified = args.verify.as_deref().map(|dir| {
        let files = verify_directory(dir, &receipt, &output.progress());
        files.map(|files| files.bytes())
    });
    if output.json() && args.only.is_none() {
        output.document(&document(&receipt, &identities, verified.as_ref()), false)?;
    }
    let verified = verified.transpose().or_exit(Code::CheckFailed)?;
    match args.only {
        Some(Which::Drafter) => output.line(identities.drafter)?,
        Some(Which::Markov) => output.line(identities.markov)?,
        None if output.json() => {}
        None => {
            output.line(format_args!("drafter {}", identities.drafter))?;
            output.line(format_args!("markov  {}", identities.markov))?;
            for line in identity_lines(&receipt.files) {
                output.note(format_args!("  {line}"));
            }
            if let Some(bytes) = verified {
                output.note(format_args!("verified: {} bytes match the receipt", count(bytes)));
            }
        }
    }
    check("drafter", args.expect_drafter, identities.drafter)?;
    check("Markov", args.expect_markov, identities.markov)
}

/// The identities, the files they are computed from in the receipt's order, and what `--verify` found of
/// each file on disk.
fn document(
    receipt: &Receipt,
    identities: &Identities,
    verified: Option<&Result<u64, VerifyError>>,
) -> Value {
    let source = |f: &dspark::checkpoint::ReceiptFile| json!({ "name": f.name, "sha256": f.sha256.to_string(), "size_bytes": f.size });
    let mut doc = json!({
        "schema": 1,
        "drafter_identity": identities.drafter.to_string(),
        "markov_identity": identities.markov.to_string(),
        "files": receipt.files.iter().map(source).collect::<Vec<_>>(),
    });
    let Some(verified) = verified else { return doc };
    let differences = match verified {
        Ok(bytes) => {
            doc["verified_bytes"] = (*bytes).into();
            &[][..]
        }
        Err(error) => &error.differences,
    };
    let files = receipt.expected_files().into_iter().map(|file| {
        let mut line = source(file);
        let difference = differences.iter().find(|difference| difference.name() == file.name);
        line["result"] = difference.map_or("ok", Difference::kind).into();
        if let Some(found) = difference.and_then(Difference::found) {
            line["found_sha256"] = found.to_string().into();
        }
        line
    });
    doc["verified"] = files.collect();
    doc
}

fn read_receipt(path: &Path) -> Result<Receipt, Failure> {
    if path.as_os_str() == "-" {
        Receipt::from_reader("stdin", std::io::stdin().lock())
    } else {
        Receipt::read(path)
    }
    .or_exit(Code::BadInput)
}

fn check(which: &str, expected: Option<Sha256Digest>, found: Sha256Digest) -> Outcome {
    match expected {
        Some(expected) if expected != found => {
            Err(Failure::new(Code::CheckFailed, format!("{which} identity differs"))
                .hint(format!("expected {expected}"))
                .hint(format!("found    {found}")))
        }
        _ => Ok(()),
    }
}
