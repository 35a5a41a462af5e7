//! Driver, cards, kernels and their memory.

use dspark::drafter::cuda::survey::{kernel_image, memory};
use dspark::drafter::cuda::{Capability, DeviceFacts, probe};

use super::files::Need;
use super::{Check, Verdict, gb};

/// Cards looked at; a host has a few.
const CARDS_MAX: u32 = 32;
/// What the backend takes beside the weights, and what the driver takes for itself. Near the live shape:
/// the exact figure needs the weights loaded, 'serve --check' prints it.
const BESIDE_WEIGHTS: u64 = 700_000_000;

/// The checks, and whether a card can draft.
pub(super) fn check(need: &Need) -> (Vec<Check>, bool) {
    let first = match probe(0) {
        Ok(facts) => facts,
        Err(unavailable) => {
            let verdict = if unavailable.what.contains("not found") {
                Verdict::Missing
            } else {
                Verdict::Failed
            };
            let skipped = |name| Check::new(name, Verdict::Skipped, "no usable driver and card");
            let driver = Check::new("driver", verdict, unavailable.what).hint(unavailable.hint);
            return (
                vec![driver, skipped("card"), skipped("kernels"), skipped("gpu memory")],
                false,
            );
        }
    };
    let (major, minor) = (first.driver / 1000, first.driver % 1000 / 10);
    let mut checks =
        vec![Check::new("driver", Verdict::Ok, format!("libcuda.so.1, CUDA {major}.{minor}"))];
    let others = (1..CARDS_MAX).map_while(|ordinal| probe(ordinal).ok());
    let mut usable = false;
    for facts in std::iter::once(first).chain(others) {
        let of_card = card(&facts, need);
        usable |= of_card.iter().all(|check| check.verdict.usable());
        checks.extend(of_card);
    }
    (checks, usable)
}

fn card(facts: &DeviceFacts, need: &Need) -> [Check; 3] {
    let Capability(major, minor) = facts.capability;
    let name = format!("{}: {}, capability {major}.{minor}", facts.ordinal, facts.name);
    let card = Check::new("card", Verdict::Ok, name);
    let kernels = match kernel_image(facts) {
        Ok(arch) if arch.starts_with("compute_") => {
            Check::new("kernels", Verdict::Warn, format!("{arch}: PTX, compiled by the driver"))
                .hint("the first start takes longer; the driver caches what it compiles")
        }
        Ok(arch) => Check::new("kernels", Verdict::Ok, format!("{arch}: machine code")),
        Err(none) => Check::new("kernels", Verdict::Failed, none.what).hint(none.hint),
    };
    [card, kernels, room(facts, need)]
}

fn room(facts: &DeviceFacts, need: &Need) -> Check {
    const NAME: &str = "gpu memory";
    let (free, total) = match memory(facts) {
        Ok(memory) => memory,
        Err(error) => {
            return Check::new(NAME, Verdict::Failed, error.to_string())
                .hint("check nvidia-smi: is the card in exclusive use, or lost?");
        }
    };
    let needed = need.weights.saturating_add(BESIDE_WEIGHTS);
    let detail =
        format!("{} of {} free, {} needs about {}", gb(free), gb(total), need.whose, gb(needed));
    if free >= needed {
        Check::new(NAME, Verdict::Ok, detail)
    } else {
        Check::new(NAME, Verdict::Failed, detail)
            .hint("end other programs on the card (see nvidia-smi), or draft on the CPU")
    }
}
