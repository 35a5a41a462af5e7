//! `--round-log`: one line per round, as CSV or JSON lines.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

use dspark::client::Round;
use dspark::client::rank0::{EngineRound, RequestResult};
use dspark::client::report::RoundClock;
use dspark::protocol::{EntryStatus, StepRequest};
use serde_json::{Map, Value, json};

use crate::exit::{Code, Failure, OrExit, Outcome};
use crate::trace;

const COLUMNS: [&str; 15] = [
    "round",
    "step_id",
    "due_us",
    "begun_us",
    "requests",
    "rows",
    "recorded_rows",
    "resyncs",
    "outcome",
    "fault",
    "total_us",
    "send_us",
    "worker_us",
    "recv_to_send_us",
    "statuses",
];

/// The file, and how it is written.
pub(crate) struct RoundLog {
    file: BufWriter<File>,
    csv: bool,
    error: Option<std::io::Error>,
}

impl RoundLog {
    /// A new file; its extension says the format.
    pub(crate) fn create(path: &Path) -> Result<Self, Failure> {
        let csv = match path.extension().and_then(|e| e.to_str()) {
            Some("csv") => true,
            Some("jsonl") => false,
            _ => {
                let name = path.display();
                return Err(Failure::new(Code::Usage, format!("{name}: not .csv or .jsonl")));
            }
        };
        let mut file = trace::create(path)?;
        if csv {
            writeln!(file, "{}", COLUMNS.join(",")).or_exit(Code::BadInput)?;
        }
        Ok(Self { file, csv, error: None })
    }

    /// Writes one round. The first error is kept for [`finish`](Self::finish): a full disk must not
    /// disturb the pace.
    pub(crate) fn round(
        &mut self,
        number: u64,
        round: &EngineRound<'_>,
        recorded: &StepRequest<'_>,
        done: &Round,
        clock: &RoundClock,
        results: &[RequestResult],
    ) {
        let statuses: Vec<_> =
            results.iter().map(|r| r.status.map_or("-", EntryStatus::name)).collect();
        let rows: usize = round.requests.iter().map(|r| r.rows.len()).sum();
        let times = done.times;
        let values: [Value; 15] = [
            number.into(),
            round.step_id.into(),
            json!(clock.due_us),
            clock.begun_us.into(),
            round.requests.len().into(),
            rows.into(),
            recorded.header.n_rows.get().into(),
            results.iter().filter(|r| r.resync).count().into(),
            format!("{:?}", done.report.outcome).into(),
            json!(done.fault.map(|f| f.name())),
            json!(times.map(|t| t.total_us)),
            json!(times.map(|t| t.send_us)),
            json!(times.map(|t| t.worker_us)),
            json!(times.map(|t| t.recv_to_send_us)),
            statuses.join(" ").into(),
        ];
        let line = if self.csv {
            let cell = |v: &Value| match v {
                Value::Null => String::new(),
                Value::String(s) => s.clone(),
                v => v.to_string(),
            };
            values.iter().map(cell).collect::<Vec<_>>().join(",")
        } else {
            let names = COLUMNS.iter().map(|c| (*c).to_owned());
            Value::Object(names.zip(values).collect::<Map<_, _>>()).to_string()
        };
        if let Err(error) = writeln!(self.file, "{line}") {
            self.error.get_or_insert(error);
        }
    }

    /// Ends the file.
    pub(crate) fn finish(mut self) -> Outcome {
        match self.error.take() {
            Some(error) => Err(error).or_exit(Code::BadInput),
            None => self.file.flush().or_exit(Code::BadInput),
        }
    }
}
