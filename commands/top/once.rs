//! One picture as text or JSON, from two samples of each worker one interval apart.

use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::draw::text;
use super::gpu::Reader;
use super::model::{Link, Model};
use super::view::View;
use crate::exit::{Code, Failure, Outcome};
use crate::output::Output;
use crate::query::{Query, QueryError};

/// More lines than any picture has: 32 slots and what is around them.
const LINES_MAX: u16 = 100;

/// The two answers of one worker, when they were asked for and came. There is no second one after a failure.
type Answers = Vec<([Duration; 2], Result<Value, QueryError>)>;

/// Asks every worker twice and prints what came of it.
pub(crate) fn run(
    mut model: Model,
    view: &View,
    width: u16,
    queries: Vec<Query>,
    cards: bool,
    output: &Output,
) -> Outcome {
    let endpoints: Vec<_> = queries.iter().map(|query| query.endpoint().clone()).collect();
    let mut failure: Option<Failure> = None;
    for (worker, answers) in ask(queries, view.interval)?.into_iter().enumerate() {
        for (times, answer) in answers {
            let said = answer.as_ref().map(Value::clone).map_err(ToString::to_string);
            model.answer(worker, times, said);
            if let Err(error) = answer {
                failure.get_or_insert(error.failure(&endpoints[worker]));
            }
        }
    }
    let reached = model.workers.iter().any(|worker| worker.is_up());
    if reached {
        if cards && !output.json() {
            model.cards = match Reader::open() {
                Ok(reader) => reader.read(),
                Err(why) => super::gpu::Cards::None(why),
            };
        }
        show(&model, view, width, output)?;
    }
    failure.map_or(Ok(()), Err)
}

fn ask(queries: Vec<Query>, interval: Duration) -> Result<Vec<Answers>, Failure> {
    let started = Instant::now();
    let ask = move |query: &mut Query| {
        let asked = started.elapsed();
        let answer = query.stats();
        ([asked, started.elapsed()], answer)
    };
    let twice = move |mut query: Query| {
        let mut answers = vec![ask(&mut query)];
        if answers[0].1.is_ok() {
            thread::sleep(interval);
            answers.push(ask(&mut query));
        }
        answers
    };
    // All at once: their figures belong to the same time.
    let asking: Vec<_> =
        queries.into_iter().map(|query| thread::spawn(move || twice(query))).collect();
    let lost = |_| Failure::new(Code::CheckFailed, "a thread that asked a worker failed");
    asking.into_iter().map(|thread| thread.join().map_err(lost)).collect()
}

fn show(model: &Model, view: &View, width: u16, output: &Output) -> Outcome {
    if output.json() {
        return Ok(output.document(&document(model), false)?);
    }
    for tab in 0..model.workers.len() {
        if tab > 0 {
            output.line("")?;
        }
        output.line(text(width, LINES_MAX, model, &View { tab, ..view.clone() }))?;
    }
    Ok(())
}

/// Each worker's STATS with its `delta`, as `stats --watch --json` prints them.
fn document(model: &Model) -> Value {
    let workers = model.workers.iter().map(|worker| {
        let error = match &worker.link {
            Link::Gone(_, why) => Some(why),
            Link::Asked | Link::Up => None,
        };
        let stats = worker.is_up().then(|| {
            let mut stats = worker.doc().clone();
            if let (Some(rates), Some(stats)) = (&worker.rates, stats.as_object_mut()) {
                stats.insert("delta".into(), rates.json());
            }
            stats
        });
        json!({ "url": worker.url, "reachable": worker.is_up(), "error": error, "stats": stats })
    });
    json!({ "schema": 1, "workers": workers.collect::<Vec<_>>() })
}
