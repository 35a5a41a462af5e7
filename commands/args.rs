//! Flag groups several commands share, and the texts they accept: durations, sizes, URLs.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use dspark::checkpoint::Synthetic;
use dspark::transport::Endpoint;

/// Where a worker's control listener is unless said otherwise.
pub(crate) const CONTROL: &str = "tcp://127.0.0.1:18629";
/// Where a worker's drafting listener is unless said otherwise.
pub(crate) const DRAFTING: &str = "tcp://127.0.0.1:18620";

/// How results and messages are printed; accepted by every command.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Output")]
pub(crate) struct OutputArgs {
    /// Print the result as JSON on stdout (numbers in base units: bytes, microseconds)
    #[arg(long, global = true)]
    pub(crate) json: bool,
    /// Print nothing but the result and errors; hides progress bars
    #[arg(short, long, global = true)]
    pub(crate) quiet: bool,
    /// Log more (-v debug, -vv trace); DSPARK_LOG sets exact filters
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    pub(crate) verbose: u8,
    /// Colour the output; NO_COLOR is honoured
    #[arg(long, global = true, value_name = "WHEN", default_value = "auto")]
    pub(crate) color: ColorWhen,
}

/// When to colour.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ColorWhen {
    /// On a terminal, unless NO_COLOR is set
    Auto,
    /// Always
    Always,
    /// Never
    Never,
}

/// The worker a tool asks.
#[derive(Args, Clone, Debug)]
pub(crate) struct ControlUrl {
    /// Worker to ask; use its control listener, a drafting listener would drop the live client
    #[arg(value_name = "URL", env = "DSPARK_CONTROL", hide_env_values = true, default_value = CONTROL,
        value_parser = control_url)]
    pub(crate) url: Endpoint,
    #[command(flatten)]
    pub(crate) asking: AskingArgs,
}

/// How a worker is asked.
#[derive(Args, Clone, Debug)]
pub(crate) struct AskingArgs {
    /// Give up after this long (50ms, 2s; a bare number is milliseconds)
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = positive_duration)]
    pub(crate) timeout: Duration,
    /// Connect even to a drafting listener, which drops the live client
    ///
    /// Without this, those that are known are refused: port 18620, DSPARK_LISTEN of this environment and of
    /// /etc/dspark/*.env, and what workers behind the default control listener and DSPARK_CONTROL say. On
    /// another host and port none is known before it is connected to: the URL must be right.
    #[arg(long)]
    pub(crate) takeover: bool,
}

/// The checkpoint a worker drafts from.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Model")]
pub(crate) struct ModelArgs {
    /// Directory with config.json and the extracted drafter tensors
    #[arg(long, value_name = "DIR", env = "DSPARK_CHECKPOINT", hide_env_values = true)]
    pub(crate) checkpoint: Option<PathBuf>,
    /// Copy receipt that the drafter identity is computed from [default: DIR/DSPARK_COPY_DONE]
    #[arg(long, value_name = "FILE", env = "DSPARK_RECEIPT", hide_env_values = true)]
    pub(crate) receipt: Option<PathBuf>,
    /// Markov cache [default: DIR/markov_top_tokens.json where there is one]
    #[arg(long, value_name = "FILE", env = "DSPARK_MARKOV", hide_env_values = true)]
    pub(crate) markov: Option<PathBuf>,
    /// Use the tiny synthetic checkpoint inside this program: no files, no GPU
    #[arg(long, conflicts_with = "checkpoint")]
    pub(crate) demo: bool,
    /// Use random weights made in memory, of the live drafter's size (live: 9.1 GB) or the demo's (small):
    /// for measurements, drafts mean nothing
    #[arg(long, value_name = "SIZE[:SEED]", conflicts_with_all = ["checkpoint", "demo"])]
    pub(crate) synthetic: Option<Synthetic>,
}

/// Where drafting runs and what it rounds.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Compute")]
pub(crate) struct ComputeArgs {
    /// Where drafting runs; auto takes the GPU when one is usable
    #[arg(long, env = "DSPARK_BACKEND", hide_env_values = true, default_value = "auto")]
    pub(crate) backend: Backend,
    /// Index of the GPU
    #[arg(
        long,
        value_name = "N",
        env = "DSPARK_DEVICE",
        hide_env_values = true,
        default_value_t = 0
    )]
    pub(crate) device: u32,
    /// Rounding of activations: bf16 as the engine's, or f32 with nothing rounded after load (CPU only)
    #[arg(long, env = "DSPARK_PRECISION", hide_env_values = true, default_value = "bf16")]
    pub(crate) precision: Rounding,
    /// Rounding of logits before the argmax: bf16 as the engine's, or f32
    #[arg(long, env = "DSPARK_LOGITS", hide_env_values = true, default_value = "bf16")]
    pub(crate) logits: Rounding,
    /// Request slots kept resident (the engine's max_num_seqs)
    #[arg(long, value_name = "N", env = "DSPARK_MAX_SLOTS", hide_env_values = true, default_value_t = 4,
        value_parser = clap::value_parser!(u32).range(1..=i64::from(dspark::geometry::SLOTS_MAX)))]
    pub(crate) max_slots: u32,
}

/// Backends of `serve`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Backend {
    /// The GPU when one is usable, else the CPU
    Auto,
    /// An NVIDIA GPU
    Cuda,
    /// The CPU
    Cpu,
}

/// Number formats to round to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Rounding {
    /// bfloat16
    Bf16,
    /// Single precision
    F32,
}

/// Parses the URL of a control listener. `off` is what a worker's environment file may say, and the tools
/// read the same variable.
fn control_url(text: &str) -> Result<Endpoint, String> {
    if text == "off" {
        return Err(
            "DSPARK_CONTROL=off starts a worker without a control listener, so there is none \
                    to ask; give its URL, or unset the variable to ask the default one"
                .into(),
        );
    }
    text.parse().map_err(|e| format!("{e}"))
}

/// Parses `50ms`, `2s`, `1m 30s`; a bare number is milliseconds.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    if let Ok(ms) = text.parse::<f64>() {
        return Duration::try_from_secs_f64(ms / 1e3)
            .map_err(|_| "a duration is not negative and not endless".to_owned());
    }
    humantime::parse_duration(text).map_err(|e| e.to_string())
}

/// As [`duration`], but not zero: a zero deadline cannot be met.
pub(crate) fn positive_duration(text: &str) -> Result<Duration, String> {
    match duration(text)? {
        Duration::ZERO => Err("must be longer than zero".into()),
        time => Ok(time),
    }
}

/// Parses a share between 0 and 1.
pub(crate) fn fraction(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(f) if (0.0..=1.0).contains(&f) => Ok(f),
        _ => Err("not a fraction between 0 and 1".into()),
    }
}

/// Parses `512`, `64KiB`, `1.5GiB`: bytes.
pub(crate) fn size(text: &str) -> Result<u64, String> {
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let factor: u64 = match unit.trim() {
        "" | "B" => 1,
        "KiB" => 1 << 10,
        "MiB" => 1 << 20,
        "GiB" => 1 << 30,
        other => return Err(format!("unknown unit '{other}'; use KiB, MiB or GiB")),
    };
    if let Ok(whole) = number.parse::<u64>() {
        return whole.checked_mul(factor).ok_or_else(|| "too large".into());
    }
    let number: f64 = number.parse().map_err(|_| format!("'{text}' is not a size"))?;
    // Fractions are for people; the product is far below 2^53 for any file that exists.
    Ok((number * factor as f64) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_take_units_and_bare_milliseconds() {
        assert_eq!(duration("50ms"), Ok(Duration::from_millis(50)));
        assert_eq!(duration("0.5"), Ok(Duration::from_micros(500)));
        assert_eq!(duration("2m"), Ok(Duration::from_secs(120)));
        assert!(duration("-5").is_err() && duration("-5ms").is_err() && duration("inf").is_err());
        assert!(positive_duration("0").is_err() && positive_duration("0s").is_err());
    }

    #[test]
    fn sizes_take_binary_units() {
        assert_eq!(size("512"), Ok(512));
        assert_eq!(size("64KiB"), Ok(65_536));
        assert_eq!(size("1.5GiB"), Ok(3 << 29));
        assert!(size("1GB").is_err() && size("x").is_err() && size("").is_err());
    }
}
