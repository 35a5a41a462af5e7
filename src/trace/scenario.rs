//! What may happen in a synthetic trace: the scenarios by name, sets of them, and a seeded generator.
#![forbid(unsafe_code)]

use std::fmt;
use std::str::FromStr;

/// Something that happens to a request in a [synthetic trace](super::synth()).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scenario {
    /// Long prompts, sent in chunks of which only the last W rows travel (contract §4.3). Without it
    /// prompts fit one window.
    Prefill,
    /// Prompts with a cached prefix: rows begin W before the hit (contract §2, bounded replay).
    PrefixHit,
    /// A request is preempted and re-added in its slot: same generation, its last rows sent again.
    Preemption,
    /// Requests finish, and their slots go to new owners: generation + 1, NEW_GEN (contract §7.1).
    Reuse,
    /// A redraft without rows at the last anchor, or a few positions before it if the window reaches back
    /// to position 0 (contract §7.2 step 3, `n_rows` 0).
    Rollback,
    /// Rows of one round never arrive: the next ones leave a gap, PARTIAL_WINDOW, and the round after
    /// that re-sends the window (contract §7.4).
    Partial,
    /// A re-send of the window, NEW_GEN | RESYNC, out of the blue (contract §7.4).
    Resync,
    /// A prompt that ends just below `max_model_len`, so that query positions are clamped (contract §7.2
    /// step 5).
    NearMaxLen,
}

impl Scenario {
    /// Every scenario.
    pub const ALL: [Self; 8] = [
        Self::Prefill,
        Self::PrefixHit,
        Self::Preemption,
        Self::Reuse,
        Self::Rollback,
        Self::Partial,
        Self::Resync,
        Self::NearMaxLen,
    ];

    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Prefill => "prefill",
            Self::PrefixHit => "prefix-hit",
            Self::Preemption => "preemption",
            Self::Reuse => "reuse",
            Self::Rollback => "rollback",
            Self::Partial => "partial",
            Self::Resync => "resync",
            Self::NearMaxLen => "near-max-len",
        }
    }
}

impl fmt::Display for Scenario {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A text that names no scenario.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no scenario '{0}'; there are {all}", all = Scenario::ALL.map(Scenario::name).join(", "))]
pub struct UnknownScenario(String);

impl FromStr for Scenario {
    type Err = UnknownScenario;

    fn from_str(text: &str) -> Result<Self, UnknownScenario> {
        let found = Self::ALL.into_iter().find(|s| s.name() == text);
        found.ok_or_else(|| UnknownScenario(text.to_owned()))
    }
}

/// A set of scenarios. The default is all but [`Scenario::NearMaxLen`], whose prompts are shown at
/// positions in the hundreds of thousands, which is not what a first look at a trace should meet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScenarioSet(u8);

impl ScenarioSet {
    /// No scenario: short prompts that decode forever.
    pub const NONE: Self = Self(0);
    /// Every scenario.
    pub const ALL: Self = Self(u8::MAX);

    /// Whether `scenario` is in the set.
    pub fn contains(self, scenario: Scenario) -> bool {
        self.0 & bit(scenario) != 0
    }

    /// The set and `scenario`.
    pub fn with(self, scenario: Scenario) -> Self {
        Self(self.0 | bit(scenario))
    }

    /// The set without `scenario`.
    pub fn without(self, scenario: Scenario) -> Self {
        Self(self.0 & !bit(scenario))
    }

    /// The scenarios of the set, in the order of [`Scenario::ALL`].
    pub fn iter(self) -> impl Iterator<Item = Scenario> {
        Scenario::ALL.into_iter().filter(move |s| self.contains(*s))
    }
}

impl Default for ScenarioSet {
    fn default() -> Self {
        Self::ALL.without(Scenario::NearMaxLen)
    }
}

impl FromIterator<Scenario> for ScenarioSet {
    fn from_iter<I: IntoIterator<Item = Scenario>>(scenarios: I) -> Self {
        scenarios.into_iter().fold(Self::NONE, Self::with)
    }
}

fn bit(scenario: Scenario) -> u8 {
    1 << (scenario as u8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_parse_back_and_sets_hold_what_was_put_in() {
        for scenario in Scenario::ALL {
            assert_eq!(scenario.name().parse(), Ok(scenario));
            let one = ScenarioSet::NONE.with(scenario);
            assert_eq!(one.iter().collect::<Vec<_>>(), [scenario]);
            assert_eq!(one.without(scenario), ScenarioSet::NONE);
        }
        assert_eq!(Scenario::ALL.into_iter().collect::<ScenarioSet>(), ScenarioSet::ALL);
        assert!("Prefill".parse::<Scenario>().unwrap_err().to_string().contains("prefix-hit"));
    }
}
