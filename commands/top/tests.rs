//! Pictures of known workers, at every size and of nonsense; the model's rules.
//!
//! The documents in tests/top are of a worker under replay, half a second apart.

use std::time::Duration;

use ratatui::Terminal;
use ratatui::backend::TestBackend;
use serde_json::{Value, json};

use super::draw::{draw, text};
use super::gpu::{Card, Cards};
use super::model::{Link, Model};
use super::view::{Sort, Theme, View};

const PLAIN: Theme = Theme { color: false, ascii: false };
const HALF: Duration = Duration::from_millis(500);
const URL: &str = "tcp://127.0.0.1:18629";

fn documents() -> [Value; 2] {
    let read = |text| serde_json::from_str(text).unwrap();
    [
        read(include_str!("../../tests/top/before.json")),
        read(include_str!("../../tests/top/after.json")),
    ]
}

fn seconds(s: f64) -> Duration {
    Duration::from_secs_f64(s)
}

/// The first worker answers at once.
fn say(model: &mut Model, at: Duration, answer: Result<Value, String>) {
    model.answer(0, [at, at], answer);
}

/// One worker, asked twice.
fn model() -> Model {
    let mut model = Model::new([(URL.to_owned(), true)]);
    for (at, doc) in [1.0, 1.5].into_iter().zip(documents()) {
        say(&mut model, seconds(at), Ok(doc));
    }
    model
}

/// A worker whose history has some shape.
fn watched() -> Model {
    let mut model = Model::new([(URL.to_owned(), true)]);
    let [mut doc, _] = documents();
    for step in 0..60_u64 {
        let grow = |doc: &mut Value, by: u64| *doc = (doc.as_u64().unwrap() + by).into();
        grow(&mut doc["steps"], 10 + step % 7);
        grow(&mut doc["rows"], 40 + 9 * (step % 11));
        grow(&mut doc["worker_us_hist"]["samples"], 10);
        for bucket in (4 + step as usize % 5)..13 {
            grow(&mut doc["worker_us_hist"]["count"][bucket], 10);
        }
        doc["uptime_s"] = (40.0 + 0.5 * step as f64).into();
        say(&mut model, seconds(1.0 + 0.5 * step as f64), Ok(doc.clone()));
    }
    model
}

fn view(tabs: usize) -> View {
    View::new(tabs, HALF, PLAIN)
}

/// What a terminal of this size shows.
fn picture(width: u16, height: u16, model: &Model, view: &View) -> String {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| draw(frame.area(), frame.buffer_mut(), model, view)).unwrap();
    let cells = terminal.backend().buffer().content().chunks(usize::from(width));
    let line = |cells: &[ratatui::buffer::Cell]| {
        cells.iter().map(|cell| cell.symbol()).collect::<String>().trim_end().to_owned() + "\n"
    };
    cells.map(line).collect()
}

#[track_caller]
fn shows(expected: &str, picture: &str) {
    assert!(expected == picture, "the picture is\n{picture}\nexpected was\n{expected}");
}

#[test]
fn a_worker_under_replay_at_80_by_24() {
    shows(include_str!("../../tests/top/80x24.txt"), &picture(80, 24, &watched(), &view(1)));
}

#[test]
fn spare_room_goes_to_blank_lines_and_higher_sparklines() {
    shows(include_str!("../../tests/top/120x40.txt"), &picture(120, 40, &watched(), &view(1)));
}

#[test]
fn little_room_is_for_what_matters() {
    shows(include_str!("../../tests/top/20x5.txt"), &picture(20, 5, &watched(), &view(1)));
    assert_eq!(picture(1, 1, &watched(), &view(1)), "\n", "the blank before the name");
}

#[test]
fn one_picture_as_text_in_ascii() {
    let mut view = view(1);
    (view.interactive, view.theme.ascii) = (false, true);
    shows(include_str!("../../tests/top/once.txt"), &(text(100, 100, &model(), &view) + "\n"));
}

#[test]
fn several_workers_are_tabs_and_one_that_is_gone_says_since_when() {
    let other = ("tcp://10.202.28.1:18629".to_owned(), false);
    let mut model = Model::new([(URL.to_owned(), true), other]);
    say(&mut model, seconds(1.0), Ok(documents()[0].clone()));
    say(&mut model, seconds(1.5), Err("connection refused".into()));
    say(&mut model, seconds(9.0), Err("connection refused".into()));
    model.now = seconds(14.0);
    let mut view = view(2);
    (view.paused, view.sort) = (true, Sort::Drafts);
    shows(include_str!("../../tests/top/gone.txt"), &picture(100, 14, &model, &view));
    view.tab = 1;
    assert_eq!(
        picture(100, 4, &model, &view).lines().nth(2),
        Some(" asking ..."),
        "nothing has been heard of the other one"
    );
}

#[test]
fn the_help_names_every_key() {
    let mut view = view(1);
    view.help = true;
    shows(include_str!("../../tests/top/help.txt"), &picture(80, 20, &model(), &view));
}

#[test]
fn a_card_is_shown_for_a_worker_of_this_host_only() {
    let mut model = model();
    let doc = &mut model.workers[0].last.as_mut().unwrap().doc;
    doc["backend"] = "cuda".into();
    doc["device"] = "NVIDIA X, sm_90a".into();
    doc["gpu_mem_bytes"] = 9_100_000_000_u64.into();
    let line = |model: &Model| {
        let all = picture(140, 40, model, &view(1));
        all.lines().find_map(|line| line.strip_prefix(" gpu ")).unwrap().trim().to_owned()
    };
    let held = "worker holds 9.10 GB";
    assert_eq!(line(&model), format!("n/a (not read yet)  {held}"));
    let full = Card {
        name: "NVIDIA X".into(),
        memory: Some((10_200_000_000, 150_000_000_000)),
        clocks_mhz: Some((1980, 3201)),
        power_mw: Some(312_400),
        celsius: Some(41),
        busy: Some(37),
    };
    let foreign = Card { name: "NVIDIA Y".into(), ..full.clone() };
    model.cards = Cards::Read(vec![foreign.clone(), full]);
    assert_eq!(line(&model), format!("NVIDIA X  memory 10.2 of 150.0 GB  {held}"));
    let does = "\n          clocks 1980 / 3201 MHz  power 312 W  41 °C  busy 37%";
    assert!(
        picture(80, 40, &model, &view(1)).contains(does),
        "{}",
        picture(80, 40, &model, &view(1))
    );
    model.cards = Cards::Read(vec![Card { name: "NVIDIA X".into(), ..Card::default() }]);
    assert_eq!(line(&model), format!("NVIDIA X  {held}"), "what it does not tell is left out");
    model.cards = Cards::Read(vec![foreign]);
    assert_eq!(line(&model), format!("n/a (NVIDIA X, sm_90a is not among the cards here)  {held}"));
    model.workers[0].local = false;
    assert_eq!(line(&model), format!("n/a (NVIDIA X, sm_90a, on another host)  {held}"));
}

/// Documents that no worker sends.
fn nonsense() -> Vec<Value> {
    let [_, doc] = documents();
    let mut docs =
        vec![Value::Null, json!([]), json!({}), json!("x"), json!({ "slots": [1, null] })];
    for wrong in
        [json!(null), json!(-1), json!(1e300), json!(u64::MAX), json!("\u{1b}[2J漢字"), json!([1])]
    {
        for key in doc.as_object().unwrap().keys() {
            let mut doc = doc.clone();
            doc[key] = wrong.clone();
            docs.push(doc);
        }
        let mut doc = doc.clone();
        doc["link"]["connections"] = wrong.clone();
        doc["acceptance"]["verified"][2] = wrong.clone();
        doc["worker_us_hist"]["count"][3] = wrong.clone();
        for key in ["slot", "rows", "lo", "hi", "drafts", "accepted", "last_status", "last_age_s"] {
            doc["slots"][1][key] = wrong.clone();
        }
        docs.push(doc);
    }
    docs
}

#[test]
fn no_size_is_too_small() {
    let mut models = vec![Model::new([(URL.to_owned(), true), ("b".into(), false)]), watched()];
    let mut gone = model();
    say(&mut gone, seconds(2.0), Err("gone".into()));
    models.push(gone);
    for model in &models {
        let mut view = view(model.workers.len());
        for help in [false, true] {
            view.help = help;
            for width in (0..24).chain([40, 79, 80, 200]) {
                for height in (0..30).chain([60]) {
                    text(width, height, model, &view);
                }
            }
        }
        view.scroll = usize::MAX;
        text(80, 24, model, &view);
    }
}

#[test]
fn nonsense_from_a_worker_is_drawn_without_a_panic_and_without_escapes() {
    let docs = nonsense();
    let mut view = view(1);
    for sort in [Sort::Slot, Sort::Age, Sort::Drafts, Sort::Accepted, Sort::Rows] {
        view.sort = sort;
        let mut model = Model::new([(URL.to_owned(), true)]);
        for (index, doc) in docs.iter().enumerate() {
            say(&mut model, seconds(index as f64), Ok(doc.clone()));
            say(&mut model, seconds(index as f64 + 0.5), Ok(documents()[index % 2].clone()));
            say(&mut model, seconds(index as f64 + 0.7), Ok(doc.clone()));
            let seen = text(140, 50, &model, &view);
            assert!(!seen.contains(|c: char| c.is_control() && c != '\n'), "{seen:?}");
        }
        view.theme.ascii = true;
        let seen = text(140, 50, &model, &view);
        assert!(seen.is_ascii(), "{seen}");
        view.theme.ascii = false;
    }
}

#[test]
fn without_colour_nothing_is_coloured() {
    use ratatui::style::Color;
    let colours = |color: bool| {
        let mut view = view(1);
        view.theme.color = color;
        let mut terminal = Terminal::new(TestBackend::new(80, 24)).unwrap();
        let model = watched();
        terminal.draw(|frame| draw(frame.area(), frame.buffer_mut(), &model, &view)).unwrap();
        let cells = terminal.backend().buffer().content().iter();
        cells.filter(|cell| cell.fg != Color::Reset || cell.bg != Color::Reset).count()
    };
    assert_eq!(colours(false), 0);
    assert!(colours(true) > 100);
}

#[test]
fn a_restarted_worker_gives_no_rates_whatever_its_counters_say() {
    let [before, after] = documents();
    let (uptime, steps) = (after["uptime_s"].as_f64().unwrap(), after["steps"].as_u64().unwrap());
    for (at, up, steps) in [
        // Younger than before; older but fewer counted; older and more counted, yet started later, be it by
        // a little.
        (2.0, 0.3, 1),
        (2.5, uptime + 0.8, steps),
        (60.0, uptime + 1.0, 1),
        (60.0, uptime + 1.0, steps + 100_000),
    ] {
        let mut model = model();
        let mut doc = before.clone();
        (doc["uptime_s"], doc["steps"]) = (up.into(), steps.into());
        say(&mut model, seconds(at), Ok(doc));
        let worker = &model.workers[0];
        assert!(worker.rates.is_none(), "{at} {up} {steps}");
        assert_eq!(worker.restarts, (1, Some(seconds(at))));
        assert_eq!(worker.history.back(), Some(&None), "a gap");
        let after = picture(80, 30, &model, &view(1));
        assert!(after.contains("restarted 0.0 s ago"), "{after}");
    }
}

#[test]
fn a_late_answer_is_no_restart() {
    let mut model = model();
    let [_, mut doc] = documents();
    // Asked at 2.0, answered at once, arrived at 2.9; and the next one in time.
    let uptime = doc["uptime_s"].as_f64().unwrap();
    for (times, up) in [([2.0, 2.9], uptime + 0.5), ([3.0, 3.0], uptime + 1.5)] {
        doc["uptime_s"] = up.into();
        model.answer(0, times.map(seconds), Ok(doc.clone()));
        assert_eq!(model.workers[0].restarts.0, 0, "{times:?}");
    }
}

#[test]
fn a_pause_of_the_network_is_no_restart() {
    let mut model = model();
    let peak = model.workers[0].peaks.rounds_per_s.unwrap();
    assert!((peak - 13.0 / 0.500_489_242).abs() < 1e-6, "{peak}");
    say(&mut model, seconds(2.0), Err("no reply within the deadline".into()));
    say(&mut model, seconds(3.0), Err("no reply within the deadline".into()));
    assert_eq!(
        model.workers[0].link,
        Link::Gone(seconds(2.0), "no reply within the deadline".into())
    );
    let [_, mut doc] = documents();
    doc["uptime_s"] = (doc["uptime_s"].as_f64().unwrap() + 30.05).into();
    say(&mut model, seconds(31.5), Ok(doc));
    let worker = &model.workers[0];
    assert!(worker.is_up() && worker.rates.is_some() && worker.restarts.0 == 0);
    let points: Vec<bool> = worker.history.iter().map(Option::is_some).collect();
    assert_eq!(points, [true, false, false, true]);
    // Peaks stay until they are reset.
    assert_eq!(worker.peaks.rounds_per_s, Some(peak));
    model.reset_peaks();
    assert_eq!(model.workers[0].peaks.rounds_per_s, None);
}

#[test]
fn acceptance_lately_is_of_the_last_half_minute() {
    let model = watched();
    let (time, lately) = model.workers[0].acceptance_lately().unwrap();
    // 60 samples half a second apart span 29.5 s, and none of them verified a draft.
    assert_eq!((time, lately.rounds), (seconds(29.5), 0));
    let (_, lately) = super::tests::model().workers[0].acceptance_lately().unwrap();
    assert!(lately.rounds > 0 && lately.verified() > lately.accepted());
}

/// A panic ends the process, so the test runs itself once more as a program of its own.
mod panics {
    use std::io::Read;

    use portable_pty::{CommandBuilder, PtySize, native_pty_system};

    use super::super::screen;

    const NAME: &str = "top::tests::panics::a_panic_leaves_the_terminal_as_it_was_and_is_printed";
    /// Set for the run in the terminal.
    const INSIDE: &str = "TEST_INSIDE_TERMINAL";

    #[test]
    fn a_panic_leaves_the_terminal_as_it_was_and_is_printed() {
        if std::env::var_os(INSIDE).is_some() {
            screen::panic_on_another_thread();
            return;
        }
        let size = PtySize { rows: 24, cols: 80, ..PtySize::default() };
        let pair = native_pty_system().openpty(size).unwrap();
        let before = pair.master.get_termios().unwrap();
        let mut command = CommandBuilder::new(std::env::current_exe().unwrap());
        command.args(["--exact", NAME, "--nocapture"]);
        command.env(INSIDE, "1");
        command.env("TERM", "xterm-256color");
        let mut reader = pair.master.try_clone_reader().unwrap();
        let mut child = pair.slave.spawn_command(command).unwrap();
        let status = child.wait().unwrap();
        assert_eq!(status.exit_code(), 101);
        let after = pair.master.get_termios().unwrap();
        assert!(before == after, "{after:?}");
        drop(pair.slave);
        let mut bytes = Vec::new();
        // The end of a terminal may be an error.
        let _ = reader.read_to_end(&mut bytes);
        let mut terminal = vt100::Parser::default();
        terminal.process(&bytes);
        let seen = terminal.screen();
        assert!(!seen.alternate_screen() && !seen.hide_cursor());
        let entered = bytes.windows(8).any(|w| w == b"\x1b[?1049h");
        assert!(entered && seen.contents().contains("nobody expects this"), "{}", seen.contents());
    }
}
