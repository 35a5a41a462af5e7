//! Every golden frame of the wire contract: bytes to fields, fields to the same bytes, verdicts of rank 0.
//!
//! The fixtures are read with exact integers; a field that the decoder places at another offset differs.
#![allow(clippy::unwrap_used)]

mod common;

use common::{MINI, hex_field, json_files};
use dspark::geometry::{Geometry, LIVE};
use dspark::protocol::control::{empty_request, reset_mask, reset_request};
use dspark::protocol::reply::ReplyTimes;
use dspark::protocol::step::StepMeta;
use dspark::protocol::{
    AppHeader, EntryStatus, FrameStatus, HelloReply, HelloRequest, Limits, Op, StepReply,
    StepReplyWriter, StepRequest, StepWriter, check_reply,
};
use serde_json::{Value, json};
use zerocopy::{FromBytes, IntoBytes};

fn geometry(frame: &Value) -> Geometry {
    if frame["geometry"] == "live" { LIVE } else { MINI }
}

fn limits(geometry: &Geometry) -> Limits {
    Limits {
        max_slots: geometry.max_slots,
        max_rows_per_step: geometry.max_rows_per_step,
        row_bytes: geometry.row_bytes() as u32,
    }
}

fn header_json(h: &AppHeader) -> Value {
    json!({
        "magic": h.magic.get(), "version": h.version.get(), "op": h.op.get(), "seq": h.seq.get(),
        "session": h.session.get(), "body_len": h.body_len.get(), "status": h.status.get(),
        "flags": h.flags.get(),
    })
}

/// Every field of `expected` equals the decoded one; fields that only the fixture has fail too.
fn assert_fields(name: &str, decoded: &Value, expected: &Value, skip: &[&str]) {
    for (key, value) in expected.as_object().unwrap() {
        if !skip.contains(&key.as_str()) {
            assert_eq!(&decoded[key], value, "{name}: field {key}");
        }
    }
}

fn hello_json(h: &HelloRequest) -> Value {
    json!({
        "proto_min": h.proto_min.get(), "proto_max": h.proto_max.get(), "num_spec": h.num_spec.get(),
        "window": h.window.get(), "hidden": h.hidden.get(), "n_taps": h.n_taps.get(),
        "tap_layer_ids": h.tap_layer_ids.map(|v| v.get()), "payload_kind": h.payload_kind.get(),
        "row_bytes": h.row_bytes.get(), "noise_token_id": h.noise_token_id.get(),
        "vocab_size": h.vocab_size.get(), "max_model_len": h.max_model_len.get(),
        "max_slots": h.max_slots.get(), "max_rows_per_step": h.max_rows_per_step.get(),
        "sample_mode": h.sample_mode.get(), "tp_size": h.tp_size.get(), "reserved": h.reserved.get(),
        "drafter_identity": hex::encode(h.drafter_identity),
        "markov_identity": hex::encode(h.markov_identity),
        "client_name": h.client_name(),
        "client_name_hex": hex::encode(h.client_name),
    })
}

fn hello_reply_json(h: &HelloReply) -> Value {
    json!({
        "proto": h.proto.get(), "max_slots": h.max_slots.get(),
        "max_rows_per_step": h.max_rows_per_step.get(), "capabilities": h.capabilities.get(),
        "window": h.window.get(), "num_spec": h.num_spec.get(),
        "drafter_identity": hex::encode(h.drafter_identity),
        "markov_identity": hex::encode(h.markov_identity),
        "worker_name": h.worker_name(),
        "worker_name_hex": hex::encode(h.worker_name),
    })
}

fn step_json(step: &StepRequest<'_>, row_bytes: usize) -> Value {
    let entries: Vec<Value> = step
        .entries
        .iter()
        .map(|e| {
            json!({
                "slot": e.slot, "req_flags": e.req_flags, "k_window": e.k_window, "n_out": e.n_out,
                "generation": e.generation.get(), "first_pos": e.first_pos.get(),
                "n_rows": e.n_rows.get(), "anchor_token": e.anchor_token.get(),
                "anchor_pos": e.anchor_pos.get(),
            })
        })
        .collect();
    let rows: Vec<Vec<String>> = step
        .entry_rows()
        .map(|(_, range)| {
            let range = range.expect("golden rows fit");
            range.map(|r| hex::encode(&step.rows[r * row_bytes..(r + 1) * row_bytes])).collect()
        })
        .collect();
    let h = step.header;
    json!({
        "step_id": h.step_id.get(), "n_req": h.n_req.get(), "step_flags": h.step_flags.get(),
        "n_rows": h.n_rows.get(), "row_bytes": h.row_bytes.get(), "rows_offset": h.rows_offset.get(),
        "reserved": h.reserved.map(|v| v.get()), "entries": entries, "rows_of_entry": rows,
    })
}

fn without_flag_names(entries: &Value) -> Vec<Value> {
    let strip = |e: &Value| {
        let mut e = e.clone();
        e.as_object_mut().unwrap().remove("flag_names");
        e
    };
    entries.as_array().unwrap().iter().map(strip).collect()
}

fn check_request(name: &str, frame: &Value) {
    let geometry = geometry(frame);
    let message = hex_field(frame, "message_hex");
    assert_eq!(frame["tcp_prefix"], message.len(), "{name}");
    let (header, body) = AppHeader::split(&message).unwrap();
    assert_fields(name, &header_json(&header), &frame["header"], &[]);
    let expected = &frame["body"];
    let mut again = header.as_bytes().to_vec();
    match Op::from_code(header.op.get()).unwrap() {
        Op::Hello => {
            let hello = HelloRequest::ref_from_bytes(body).unwrap();
            assert_fields(name, &hello_json(hello), expected, &[]);
            again.extend_from_slice(hello.as_bytes());
        }
        Op::Step => {
            let step = StepRequest::parse(body, &limits(&geometry))
                .unwrap_or_else(|e| panic!("{name}: {e}"));
            let decoded = step_json(&step, geometry.row_bytes());
            assert_fields(name, &decoded, expected, &["entries"]);
            let entries = without_flag_names(&expected["entries"]);
            assert_eq!(decoded["entries"], json!(entries), "{name}");
            again.extend_from_slice(step.header.as_bytes());
            again.extend_from_slice(step.entries.as_bytes());
            again.resize(
                if step.rows.is_empty() {
                    message.len()
                } else {
                    32 + step.header.rows_offset.get() as usize
                },
                0,
            );
            again.extend_from_slice(step.rows);
        }
        Op::Reset => {
            let mask = reset_mask(body).unwrap();
            assert_eq!(json!(mask), expected["slot_mask"], "{name}");
            again = reset_request(header.seq.get(), header.session.get(), mask);
        }
        op @ (Op::Stats | Op::Ping) => {
            assert!(body.is_empty(), "{name}");
            again = empty_request(op, header.seq.get(), header.session.get()).to_vec();
        }
    }
    assert_eq!(hex::encode(again), hex::encode(&message), "{name}: encoded again");
}

#[test]
fn golden_requests_decode_field_by_field_and_encode_to_the_same_bytes() {
    let mut seen = 0;
    for (name, frame) in json_files("wire", "") {
        if frame["kind"] == "request" && frame.get("expect").is_none() {
            check_request(&name, &frame);
            seen += 1;
        }
    }
    assert_eq!(seen, 18);
}

fn step_reply_json(reply: &StepReply<'_>) -> Value {
    let h = reply.header;
    let n = usize::from(h.n_req.get());
    let bits = |f: f32| format!("{:08x}", f.to_bits());
    json!({
        "step_id": h.step_id.get(), "n_req": h.n_req.get(), "num_spec": h.num_spec.get(),
        "reply_flags": h.reply_flags.get(), "worker_us": h.worker_us.get(),
        "recv_to_send_us": h.recv_to_send_us.get(), "reserved": h.reserved.map(|v| v.get()),
        "status": (0..n).map(|i| {
            let row = &reply.statuses[i];
            json!({
                "status": row.status.get(),
                "name": reply.status(i).map_or("?", EntryStatus::name),
                "window_rows": row.window_rows.get(), "generation": row.generation.get(),
            })
        }).collect::<Vec<_>>(),
        "draft_ids": (0..n).map(|i| reply.ids(i).collect::<Vec<_>>()).collect::<Vec<_>>(),
        "confidence_bits": (0..n).map(|i| reply.confidence(i).map(bits).collect::<Vec<_>>()).collect::<Vec<_>>(),
        "margin_bits": (0..n).map(|i| reply.margin(i).map(bits).collect::<Vec<_>>()).collect::<Vec<_>>(),
    })
}

/// Writes the decoded reply again with the worker's own writer.
fn rewrite(header: &AppHeader, reply: &StepReply<'_>) -> Vec<u8> {
    let mut message = Vec::new();
    let h = reply.header;
    let mut writer = StepReplyWriter::begin(
        &mut message,
        header,
        h.step_id.get(),
        h.n_req.get(),
        h.num_spec.get(),
        reply.has_margin(),
    );
    for i in 0..usize::from(h.n_req.get()) {
        let row = &reply.statuses[i];
        let status = reply.status(i).unwrap();
        writer.status(i, status, row.window_rows.get(), row.generation.get());
        let (ids, confidence): (Vec<_>, Vec<_>) =
            (reply.ids(i).collect(), reply.confidence(i).collect());
        let mut margin: Vec<_> = reply.margin(i).collect();
        margin.resize(ids.len(), 0.0);
        writer.block(i, &ids, &confidence, &margin);
    }
    writer.times(ReplyTimes {
        worker_us: h.worker_us.get(),
        recv_to_send_us: h.recv_to_send_us.get(),
    });
    message
}

#[test]
fn golden_replies_decode_and_encode_and_rank_0_judges_them() {
    let (mut plain, mut judged) = (0, 0);
    for (name, frame) in json_files("wire", "") {
        if frame["kind"] != "reply" {
            continue;
        }
        let message = hex_field(&frame, "message_hex");
        let (header, body) = AppHeader::split(&message).unwrap();
        assert_fields(&name, &header_json(&header), &frame["header"], &[]);
        if let Some(accepts) = frame.get("rank0_accepts") {
            let sent = hex_field(&frame, "answers_hex");
            let (sent_header, sent_body) = AppHeader::split(&sent).unwrap();
            let geometry = geometry(&frame);
            let step = StepRequest::parse(sent_body, &limits(&geometry)).unwrap();
            let verdict = check_reply(&sent_header, &step, &geometry, &message);
            assert_eq!(verdict.is_ok(), accepts.as_bool().unwrap(), "{name}: {verdict:?}");
            judged += 1;
        }
        let expected = &frame["body"];
        if header.op.get() == Op::Step.code() && expected.is_object() && !body.is_empty() {
            let Some(reply) = StepReply::parse(body) else {
                assert_eq!(frame["rank0_accepts"], false, "{name}");
                continue;
            };
            let skip = ["confidence", "margin"];
            assert_fields(&name, &step_reply_json(&reply), expected, &skip);
            if frame["rank0_accepts"] == true {
                assert_eq!(hex::encode(rewrite(&header, &reply)), hex::encode(&message), "{name}");
            }
        } else if header.op.get() == Op::Hello.code() && !body.is_empty() {
            let reply = HelloReply::ref_from_bytes(body).unwrap();
            assert_fields(&name, &hello_reply_json(reply), expected, &[]);
            assert_eq!(hex::encode(reply.as_bytes()), hex::encode(body), "{name}");
        } else if header.op.get() != Op::Stats.code() {
            assert!(body.is_empty() || frame["rank0_accepts"] == false, "{name}");
        }
        plain += 1;
    }
    assert_eq!((plain, judged), (53, 40));
}

#[test]
fn error_replies_echo_the_request_with_an_empty_body() {
    for (name, frame) in json_files("wire", "step-error-") {
        let message = hex_field(&frame, "message_hex");
        let (header, _) = AppHeader::split(&message).unwrap();
        let request = AppHeader::request(Op::Step, header.seq.get(), header.session.get(), 4711);
        let status = FrameStatus::from_code(frame["header"]["status"].as_u64().unwrap() as u32);
        assert_eq!(request.reply(status.unwrap(), 0).as_bytes(), message, "{name}");
    }
}

#[test]
fn rank_0_writes_the_golden_steps() {
    for name in
        ["step-1x3", "step-2-entries", "step-3-entries", "step-4-entries", "step-want-margin"]
    {
        let (_, frame) = json_files("wire", name).remove(0);
        let message = hex_field(&frame, "message_hex");
        let (header, body) = AppHeader::split(&message).unwrap();
        let geometry = geometry(&frame);
        let step = StepRequest::parse(body, &limits(&geometry)).unwrap();
        let meta = StepMeta {
            seq: header.seq.get(),
            session: header.session.get(),
            step_id: step.header.step_id.get(),
            want_margin: step.want_margin(),
            row_bytes: geometry.row_bytes(),
        };
        let mut again = Vec::new();
        let mut writer = StepWriter::begin(&mut again, meta, step.entries);
        for row in step.rows.chunks(geometry.row_bytes()) {
            writer.rows(row);
        }
        writer.finish();
        assert_eq!(hex::encode(again), hex::encode(message), "{name}");
    }
}

#[test]
fn the_live_hello_is_what_this_geometry_sends() {
    let (_, frame) = json_files("wire", "hello-live").remove(0);
    let message = hex_field(&frame, "message_hex");
    let (header, body) = AppHeader::split(&message).unwrap();
    let golden = HelloRequest::ref_from_bytes(body).unwrap();
    let ours = HelloRequest::new(
        &LIVE,
        golden.drafter_identity,
        golden.markov_identity,
        &golden.client_name(),
    );
    assert_eq!(hex::encode(ours.as_bytes()), hex::encode(body));
    let ours = AppHeader::request(Op::Hello, header.seq.get(), header.session.get(), 192);
    assert_eq!(ours.as_bytes(), header.as_bytes());
}
