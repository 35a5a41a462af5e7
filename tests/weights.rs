//! Loading the drafter's tensors: what is accepted, what is refused and how it is named.

#![allow(clippy::unwrap_used, missing_docs)]

mod cases;

use std::collections::HashMap;

use cases::Answer;
use dspark::buffer::SharedBytes;
use dspark::checkpoint::{Checkpoint, TensorStore};
use dspark::drafter::cpu::{CpuDrafter, CpuOptions, Logits, Precision};
use dspark::drafter::weights::{Linear, LoadReport, Problem, Weights};
use safetensors::tensor::TensorView;

/// A tensor to be written.
#[derive(Clone)]
struct Plain {
    dtype: safetensors::Dtype,
    shape: Vec<usize>,
    data: Vec<u8>,
}

type Tensors = HashMap<String, Plain>;

/// The tensors of the tiny checkpoint, to be tampered with.
fn tensors() -> Tensors {
    let checkpoint = cases::checkpoint();
    let plain = |t: &dspark::checkpoint::Tensor| Plain {
        dtype: cases::plain(&t.dtype),
        shape: t.shape.clone(),
        data: t.data.to_vec(),
    };
    checkpoint.tensors.iter().map(|t| (t.name.clone(), plain(t))).collect()
}

/// The tiny checkpoint with other tensors.
fn with(tensors: &Tensors) -> Checkpoint {
    let views = tensors
        .iter()
        .map(|(name, t)| (name, TensorView::new(t.dtype, t.shape.clone(), &t.data).unwrap()));
    let bytes = safetensors::serialize(views, None).unwrap();
    let file = ("model.safetensors".to_owned(), SharedBytes::new(bytes));
    let tensors = TensorStore::from_files([file]).unwrap();
    Checkpoint { tensors, ..cases::checkpoint() }
}

fn load(tensors: &Tensors) -> Result<LoadReport, Vec<Problem>> {
    Weights::load(&with(tensors)).map(|(_, report)| report).map_err(|error| error.problems)
}

fn f32s(shape: &[usize], values: &[f32]) -> Plain {
    let data = values.iter().flat_map(|v| v.to_le_bytes()).collect();
    Plain { dtype: safetensors::Dtype::F32, shape: shape.to_vec(), data }
}

/// Drafts of the first worked example in f32.
fn drafts(tensors: &Tensors) -> Vec<Answer> {
    let options = CpuOptions { precision: Precision::F32, logits: Logits::F32, max_slots: 4 };
    let mut drafter = CpuDrafter::new(&with(tensors), options).unwrap();
    let pool = cases::pool();
    let steps = cases::case("01_fresh_short").steps;
    steps.iter().flat_map(|step| cases::run(&mut drafter, &cases::plan(step, &pool))).collect()
}

#[test]
fn the_report_accounts_for_every_tensor() {
    let (weights, report) = Weights::load(&cases::checkpoint()).unwrap();
    assert_eq!(report.to_string(), "consumed/ignored/missing = 449/1/0");
    assert_eq!(report.ignored[0].tensor, "norm.weight");
    let head = report.modules.iter().find(|row| row.module == "head").unwrap();
    assert_eq!((head.form.as_str(), head.width.as_deref()), ("exl3", Some("6")));
    assert_eq!((head.codebook.as_deref(), &head.shape[..]), (Some("mul1"), &[512, 256][..]));
    assert_eq!(head.file, "model-exl3-head.safetensors");
    assert_eq!((weights.head.in_features(), weights.head.out_features()), (256, 512));
}

#[test]
fn every_missing_tensor_is_named_at_once() {
    let mut tensors = tensors();
    let missing = [
        "mtp.0.ffn.experts.5.w2.svh",
        "mtp.1.attn.wq_a.trellis",
        "mtp.1.attn_norm.weight",
        "mtp.2.confidence_head.proj.weight",
        "embed.weight",
    ];
    for name in missing {
        tensors.remove(name).unwrap();
    }
    let problems = load(&tensors).unwrap_err();
    for name in missing {
        let problem = Problem::Missing { tensor: name.into() };
        assert!(problems.contains(&problem), "{name} is not among {problems:?}");
    }
}

#[test]
fn a_renamed_expert_is_missing_and_unknown() {
    let mut tensors = tensors();
    let tensor = tensors.remove("mtp.0.ffn.experts.5.w2.trellis").unwrap();
    tensors.insert("mtp.0.ffn.experts.5.w_2.trellis".into(), tensor);
    let problems = load(&tensors).unwrap_err();
    let missing = Problem::Missing { tensor: "mtp.0.ffn.experts.5.w2.trellis".into() };
    let unknown = Problem::Unknown { tensor: "mtp.0.ffn.experts.5.w_2.trellis".into() };
    assert!(problems.contains(&missing) && problems.contains(&unknown), "{problems:?}");
}

#[test]
fn only_listed_extra_tensors_are_ignored() {
    let mut tensors = tensors();
    for name in ["mtp.0.ffn.gate.bias_vl", "vision.patch.weight", "layers.3.attn_norm.weight"] {
        tensors.insert(name.into(), f32s(&[8], &[0.0; 8]));
    }
    let report = load(&tensors).unwrap();
    assert_eq!((report.consumed, report.ignored.len()), (449, 4));
    tensors.insert("mtp.1.attn.q_norm.bias".into(), f32s(&[8], &[0.0; 8]));
    let unknown = Problem::Unknown { tensor: "mtp.1.attn.q_norm.bias".into() };
    assert_eq!(load(&tensors).unwrap_err(), [unknown]);
}

#[test]
fn a_wrong_shape_is_named_with_both_shapes() {
    let mut tensors = tensors();
    tensors.insert("mtp.0.attn.attn_sink".into(), f32s(&[5], &[0.0; 5]));
    let trellis = tensors.get_mut("mtp.0.attn.wkv.trellis").unwrap();
    trellis.shape = vec![8, 16, 80];
    let problems = load(&tensors).unwrap_err();
    let shape = |tensor: &str, got: &[usize], expected: &[usize]| Problem::Shape {
        tensor: tensor.into(),
        got: got.into(),
        expected: expected.into(),
    };
    assert!(problems.contains(&shape("mtp.0.attn.attn_sink", &[5], &[4])), "{problems:?}");
    let trellis = shape("mtp.0.attn.wkv.trellis", &[8, 16, 80], &[16, 8, 80]);
    assert!(problems.contains(&trellis), "{problems:?}");
}

#[test]
fn eight_bit_linears_are_refused_by_name_unless_exl3_is_there_too() {
    let mut tensors = tensors();
    let fp8 = Plain {
        dtype: safetensors::Dtype::F8_E4M3,
        shape: vec![128, 256],
        data: vec![0; 128 * 256],
    };
    tensors.insert("mtp.0.attn.wkv.weight".into(), fp8);
    tensors.insert("mtp.0.attn.wkv.scale".into(), f32s(&[1], &[1.0]));
    assert_eq!(load(&tensors).unwrap().ignored.len(), 3);
    for part in ["trellis", "suh", "svh", "mul1"] {
        tensors.remove(&format!("mtp.0.attn.wkv.{part}")).unwrap();
    }
    let refused =
        Problem::NotSupported { tensor: "mtp.0.attn.wkv.weight".into(), form: "F8_E4M3".into() };
    assert_eq!(load(&tensors).unwrap_err(), [refused]);
}

#[test]
fn a_checkpoint_without_confidence_is_refused() {
    let mut checkpoint = cases::checkpoint();
    checkpoint.config.confidence_head = false;
    let error = Weights::load(&checkpoint).err().unwrap();
    assert_eq!(error.problems, [Problem::NoConfidenceHead]);
}

#[test]
fn foreign_markers_and_both_markers_are_refused() {
    let mut tensors = tensors();
    let mut marker = tensors["head.mul1"].clone();
    tensors.insert("head.mcg".into(), marker.clone());
    marker.data = 0x83D6_B12Du32.to_le_bytes().to_vec();
    tensors.insert("mtp.0.main_proj.mul1".into(), marker);
    let problems = load(&tensors).unwrap_err();
    let modules: Vec<&str> = problems
        .iter()
        .map(|problem| match problem {
            Problem::Exl3 { module, .. } => module.as_str(),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(modules, ["mtp.0.main_proj", "head"]);
}

/// Replaces every EXL3 linear by its plain weight [out, in].
fn unquantised() -> Tensors {
    let (weights, report) = Weights::load(&cases::checkpoint()).unwrap();
    let mut tensors = tensors();
    let modules: Vec<&str> =
        report.modules.iter().filter(|m| m.form == "exl3").map(|m| m.module.as_str()).collect();
    for module in modules {
        let Linear::Exl3(exl3) = linear(&weights, module) else { panic!("{module}") };
        let (inputs, outputs) = (exl3.in_features(), exl3.out_features());
        let weight = exl3.weight();
        let transposed: Vec<f32> =
            (0..outputs * inputs).map(|i| weight[i % inputs * outputs + i / inputs]).collect();
        tensors.insert(format!("{module}.weight"), f32s(&[outputs, inputs], &transposed));
        for part in ["trellis", "suh", "svh", "mul1"] {
            tensors.remove(&format!("{module}.{part}")).unwrap();
        }
    }
    tensors
}

fn linear<'a>(weights: &'a Weights, module: &str) -> &'a Linear {
    let parts: Vec<&str> = module.split('.').collect();
    let layer = |i: &str| &weights.layers[i.parse::<usize>().unwrap()];
    let pick = |e: &'a dspark::drafter::weights::Expert, w: &str| match w {
        "w1" => &e.w1,
        "w2" => &e.w2,
        _ => &e.w3,
    };
    match parts[..] {
        ["head"] => &weights.head,
        ["mtp", "0", "main_proj"] => &weights.main_proj,
        ["mtp", i, "attn", "wq_a"] => &layer(i).wq_a,
        ["mtp", i, "attn", "wq_b"] => &layer(i).wq_b,
        ["mtp", i, "attn", "wkv"] => &layer(i).wkv,
        ["mtp", i, "attn", "wo_b"] => &layer(i).wo_b,
        ["mtp", i, "attn", "wo_a", "slice", g] => &layer(i).wo_a[g.parse::<usize>().unwrap()],
        ["mtp", i, "ffn", "shared_experts", w] => pick(&layer(i).shared, w),
        ["mtp", i, "ffn", "experts", e, w] => {
            pick(&layer(i).experts[e.parse::<usize>().unwrap()], w)
        }
        _ => panic!("{module}"),
    }
}

/// Plain weights carry one rounding of the rotations, EXL3 products rotate in f32: 1e-7 in confidence and
/// 8e-6 in margin, as two f32 programs differ; the limits are those between any two.
#[test]
fn plain_linears_draft_as_the_exl3_linears_they_equal() {
    let (plain, exl3) = (drafts(&unquantised()), drafts(&tensors()));
    let (mut confidence, mut margin) = (0f32, 0f32);
    for (plain, exl3) in plain.iter().zip(&exl3) {
        assert_eq!(plain.draft_ids, exl3.draft_ids);
        for j in 0..cases::N {
            confidence = confidence.max((plain.confidence[j] - exl3.confidence[j]).abs());
            margin = margin.max((plain.margin[j] - exl3.margin[j]).abs());
        }
    }
    println!("plain against EXL3: confidence {confidence:e}, margin {margin:e}");
    assert!(confidence <= 1e-4 && margin <= 1e-3);
}

#[test]
fn wo_a_as_one_matrix_drafts_the_same_bits_as_its_slices() {
    let mut sliced = tensors();
    let mut whole = sliced.clone();
    for layer in 0..3 {
        let name = |part: &str| format!("mtp.{layer}.attn.wo_a.{part}");
        // One matrix has one set of input scales.
        let suh = sliced[&name("slice.0.suh")].clone();
        sliced.insert(name("slice.1.suh"), suh.clone());
        whole.insert(name("suh"), suh);
        let slices =
            |part: &str| [0, 1].map(|g| sliced[&name(&format!("slice.{g}.{part}"))].clone());
        let [a, b] = slices("svh");
        let svh = Plain { shape: vec![256], data: [a.data, b.data].concat(), ..a };
        let [a, b] = slices("trellis");
        let row = 8 * 80 * 2;
        let rows = a.data.chunks(row).zip(b.data.chunks(row));
        let data = rows.flat_map(|(a, b)| [a, b].concat()).collect();
        let trellis = Plain { shape: vec![16, 16, 80], data, ..a };
        whole.extend([(name("svh"), svh), (name("trellis"), trellis)]);
        whole.insert(name("mul1"), sliced[&name("slice.0.mul1")].clone());
        whole.retain(|tensor, _| !tensor.starts_with(&name("slice.")));
    }
    assert_eq!(drafts(&whole), drafts(&sliced));
}

#[test]
fn a_pack_that_numbers_its_layers_after_the_targets_loads() {
    let renamed: Tensors = tensors()
        .into_iter()
        .filter(|(name, _)| name != "norm.weight")
        .map(|(name, tensor)| {
            let name = match name.strip_prefix("mtp.").and_then(|rest| rest.split_once('.')) {
                Some(("0", rest)) if rest.starts_with("main_") => format!("model.{rest}"),
                Some(("2", "norm.weight")) => "model.norm.weight".into(),
                Some(("2", "markov_head.embed.weight")) => {
                    "model.markov_head.markov_w1.weight".into()
                }
                Some(("2", "markov_head.head.weight")) => {
                    "model.markov_head.markov_w2.weight".into()
                }
                Some((i, rest)) => {
                    format!("model.layers.{}.{rest}", 40 + i.parse::<usize>().unwrap())
                }
                None => name.replace("head.", "lm_head."),
            };
            (name, tensor)
        })
        .collect();
    assert_eq!(load(&renamed).unwrap().consumed, 449);
}
