//! What a stage found: cases with figures, in sections that print as tables.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::Stage;

/// How a case ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Outcome {
    Passed,
    Failed,
    Skipped,
    /// A fact, neither right nor wrong.
    Noted,
}

/// One case or fact. Names of figures end in their unit: `_us`, `_bytes`, `_khz`, `_gb_s`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Case {
    pub(super) name: String,
    pub(super) outcome: Outcome,
    pub(super) figures: Map<String, Value>,
    /// Why it failed or was skipped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) reason: Option<String>,
}

impl Case {
    /// A case that passes unless something is found wrong with it.
    pub(super) fn new(name: impl Into<String>) -> Self {
        Self { name: name.into(), outcome: Outcome::Passed, figures: Map::new(), reason: None }
    }

    /// Figures that nothing is asked of.
    pub(super) fn noted(name: impl Into<String>) -> Self {
        Self { outcome: Outcome::Noted, ..Self::new(name) }
    }

    /// A fact.
    pub(super) fn fact(name: impl Into<String>, value: impl Into<Value>) -> Self {
        Self::noted(name).figure("value", value)
    }

    /// A case that was left out.
    pub(super) fn skipped(name: impl Into<String>, why: impl Into<String>) -> Self {
        Self { outcome: Outcome::Skipped, reason: Some(why.into()), ..Self::new(name) }
    }

    /// Adds a figure.
    pub(super) fn figure(mut self, key: &str, value: impl Into<Value>) -> Self {
        self.figures.insert(key.to_owned(), value.into());
        self
    }

    /// Makes the case fail; the first reason is kept.
    pub(super) fn fail(&mut self, why: impl Into<String>) {
        self.outcome = Outcome::Failed;
        self.reason.get_or_insert_with(|| why.into());
    }

    /// The case, failed.
    pub(super) fn failed(mut self, why: impl Into<String>) -> Self {
        self.fail(why);
        self
    }
}

/// Cases with the same figures.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Section {
    pub(super) title: String,
    /// Keys of the figures, in the order of the table.
    pub(super) columns: Vec<String>,
    pub(super) cases: Vec<Case>,
}

impl Section {
    pub(super) fn new(title: impl Into<String>, columns: &[&str]) -> Self {
        let columns = columns.iter().map(|&column| column.to_owned()).collect();
        Self { title: title.into(), columns, cases: Vec::new() }
    }
}

/// A whole stage.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct StageReport {
    pub(super) stage: Stage,
    pub(super) seconds: f64,
    pub(super) notes: Vec<String>,
    pub(super) sections: Vec<Section>,
}

impl StageReport {
    pub(super) fn new(stage: Stage) -> Self {
        Self { stage, seconds: 0.0, notes: Vec::new(), sections: Vec::new() }
    }

    /// A stage of which there is nothing but one case.
    pub(super) fn only(stage: Stage, case: Case) -> Self {
        let mut report = Self::new(stage);
        report.sections.push(Section { cases: vec![case], ..Section::new("", &[]) });
        report
    }

    /// Leaves cases out whose name does not hold `only`.
    pub(super) fn keep(&mut self, only: &str) {
        for section in &mut self.sections {
            section.cases.retain(|case| case.name.contains(only));
        }
        self.sections.retain(|section| !section.cases.is_empty());
    }

    pub(super) fn tally(&self) -> Tally {
        let mut tally = Tally::default();
        for case in self.sections.iter().flat_map(|section| &section.cases) {
            match case.outcome {
                Outcome::Passed => tally.passed += 1,
                Outcome::Failed => tally.failed += 1,
                Outcome::Skipped => tally.skipped += 1,
                Outcome::Noted => {}
            }
        }
        tally
    }

    /// The stage in the document of all stages.
    pub(super) fn json(&self) -> Value {
        let section = |section: &Section| json!({ "title": section.title, "cases": section.cases });
        let tally = self.tally();
        json!({
            "stage": self.stage,
            "seconds": self.seconds,
            "passed": tally.passed,
            "failed": tally.failed,
            "skipped": tally.skipped,
            "notes": self.notes,
            "sections": self.sections.iter().map(section).collect::<Vec<_>>(),
        })
    }
}

/// Cases by how they ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Tally {
    pub(super) passed: usize,
    pub(super) failed: usize,
    pub(super) skipped: usize,
}

impl std::iter::Sum for Tally {
    fn sum<I: Iterator<Item = Self>>(tallies: I) -> Self {
        tallies.fold(Self::default(), |sum, next| Self {
            passed: sum.passed + next.passed,
            failed: sum.failed + next.failed,
            skipped: sum.skipped + next.skipped,
        })
    }
}

impl std::fmt::Display for Tally {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} passed, {} failed, {} skipped", self.passed, self.failed, self.skipped)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_survives_its_way_between_processes_and_counts_what_it_holds() {
        let mut report = StageReport::only(Stage::Kernels, Case::skipped("a", "no reason"));
        let cases = &mut report.sections[0].cases;
        cases.push(Case::new("ab").figure("rows", 3));
        cases.push(Case::new("b").failed("first").failed("second"));
        cases.push(Case::fact("c", "text"));
        let text = serde_json::to_string(&report).unwrap();
        let mut back: StageReport = serde_json::from_str(&text).unwrap();
        assert_eq!(back.tally().to_string(), "1 passed, 1 failed, 1 skipped");
        assert_eq!(back.sections[0].cases[2].reason.as_deref(), Some("first"));
        back.keep("a");
        assert_eq!(back.tally(), Tally { passed: 1, failed: 0, skipped: 1 });
        back.keep("z");
        assert!(back.sections.is_empty());
    }
}
