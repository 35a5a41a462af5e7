//! `dspark top`: watches workers live in the terminal, or prints one picture of them.
//!
//! | file | job |
//! |---|---|
//! | `model`, `latency` | answers in; rates, peaks, history out |
//! | `view` | keys in; what is shown and how out |
//! | `panels`, `draw` | both in; a picture out |
//! | `feed`, `gpu` | the threads that ask workers and cards |
//! | `screen`, `once` | the terminal, or one picture as text |

mod draw;
mod feed;
mod gpu;
mod latency;
mod model;
mod once;
mod panels;
mod screen;
#[cfg(test)]
mod tests;
mod view;

use std::io::{IsTerminal, stdout};
use std::net::{IpAddr, UdpSocket};
use std::time::Duration;

use clap::Args;
use dspark::transport::Endpoint;
use ratatui::crossterm::style::force_color_output;
use ratatui::crossterm::terminal;

use crate::args::{self, AskingArgs, CONTROL};
use crate::exit::{Failure, Outcome};
use crate::output::Output;
use crate::query::Query;
use model::Model;
use view::{Theme, View};

const EXAMPLES: &str = "\
Keys: q quit, p pause, s sort slots, r reset peaks, +/- refresh rate, Tab next worker, ? help

It only asks and changes nothing. With --once or --json it asks twice, one interval apart, and exits
with 3 when a worker cannot be reached. 130 means that a signal ended it.

Examples:
  dspark top
  dspark top tcp://10.202.28.1:18629 tcp://10.202.28.2:18629
  dspark top --once --interval 5s
  dspark top --json | jq '.workers[].stats.delta'";

/// Shortest interval: a worker has better things to do than to answer more often.
const INTERVAL_MIN: Duration = Duration::from_millis(50);
/// Columns of a picture that goes to no terminal.
const COLUMNS: u16 = 100;

/// Arguments of `dspark top`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct TopArgs {
    /// Workers to watch, by their control listeners; several are shown as tabs
    #[arg(value_name = "URL", env = "DSPARK_CONTROL", hide_env_values = true,
        default_value = CONTROL, value_delimiter = ',')]
    urls: Vec<Endpoint>,
    #[command(flatten)]
    asking: AskingArgs,
    /// Refresh interval, 50ms or more
    #[arg(short, long, value_name = "TIME", default_value = "500ms", value_parser = interval)]
    interval: Duration,
    /// Print one picture as text and exit; the default when stdout is not a terminal
    #[arg(long)]
    once: bool,
    /// Draw with ASCII characters only
    #[arg(long)]
    ascii: bool,
}

fn interval(text: &str) -> Result<Duration, String> {
    match args::duration(text)? {
        short if short < INTERVAL_MIN => Err("must be 50ms or more".into()),
        time => Ok(time),
    }
}

/// Watches the workers.
pub(crate) fn run(args: &TopArgs, output: &Output) -> Outcome {
    let queries = args.urls.iter().map(|url| Query::at(url, &args.asking));
    let queries = queries.collect::<Result<Vec<_>, Failure>>()?;
    let model = Model::new(args.urls.iter().map(|url| (url.to_string(), is_here(url))));
    let on_terminal = stdout().is_terminal();
    let theme = Theme { color: output.colored(on_terminal), ascii: args.ascii };
    let mut view = View::new(queries.len(), args.interval, theme);
    // Only a worker on this host can be drafting on its cards.
    let cards = model.workers.iter().any(|worker| worker.local);
    if args.once || output.json() || !on_terminal {
        view.interactive = false;
        let size = terminal::size().ok().filter(|_| on_terminal);
        let width = size.map_or(COLUMNS, |(columns, _)| columns);
        return once::run(model, &view, width, queries, cards, output);
    }
    // It would look at NO_COLOR itself and overrule --color always.
    force_color_output(theme.color);
    screen::run(model, view, queries, cards)
}

/// Whether the worker's address is one of this host's: only those can be bound.
fn is_here(url: &Endpoint) -> bool {
    if url.host == "localhost" {
        return true;
    }
    url.host.parse::<IpAddr>().is_ok_and(|ip| UdpSocket::bind((ip, 0)).is_ok())
}
