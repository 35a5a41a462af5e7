
use builtin;
use str;

set edit:completion:arg-completer[dspark] = {|@words|
    fn spaces {|n|
        builtin:repeat $n ' ' | str:join ''
    }
    fn cand {|text desc|
        edit:complex-candidate $text &display=$text' '(spaces (- 14 (wcswidth $text)))$desc
    }
    var command = 'dspark'
    for word $words[1..-1] {
        if (str:has-prefix $word '-') {
            break
        }
        set command = $command';'$word
    }
    var completions = [
        &'dspark'= {
            cand --color 'Colour the output; NO_COLOR is honoured'
            cand --json 'Print the result as JSON on stdout (numbers in base units: bytes, microseconds)'
            cand -q 'Print nothing but the result and errors; hides progress bars'
            cand --quiet 'Print nothing but the result and errors; hides progress bars'
            cand -v 'Log more (-v debug, -vv trace); DSPARK_LOG sets exact filters'
            cand --verbose 'Log more (-v debug, -vv trace); DSPARK_LOG sets exact filters'
            cand -h 'Print help (see more with ''--help'')'
            cand --help 'Print help (see more with ''--help'')'
            cand -V 'Print version'
            cand --version 'Print version'
            cand serve 'Run the drafter worker until SIGINT or SIGTERM'
            cand identity 'Print the drafter and Markov identities that HELLO exchanges'
            cand ping 'Measure the round trip to a worker, or wait until it is ready'
            cand stats 'Show the worker''s counters and latency percentiles'
            cand replay 'Drive a worker with recorded taps, as Spark rank 0 would'
            cand shadow-diff 'Compare two sets of drafts round by round'
            cand gpu-check 'Check a GPU and measure drafting on it'
            cand top 'Watch workers live in the terminal'
            cand doctor 'Check what this machine can run and say how to fix what is missing'
            cand trace 'Inspect and make trace files'
            cand completions 'Print a shell completion script'
            cand man 'Write the manual pages, one per command'
            cand help 'Print this message or the help of the given subcommand(s)'
        }
        &'dspark;serve'= {
            cand --checkpoint 'Directory with config.json and the extracted drafter tensors'
            cand --receipt 'Copy receipt that the drafter identity is computed from [default: DIR/DSPARK_COPY_DONE]'
            cand --markov 'Markov cache [default: DIR/markov_top_tokens.json where there is one]'
            cand --synthetic 'Use random weights made in memory, of the live drafter''s size (live: 9.1 GB) or the demo''s (small): for measurements, drafts mean nothing'
            cand --backend 'Where drafting runs; auto takes the GPU when one is usable'
            cand --device 'Index of the GPU'
            cand --precision 'Rounding of activations: bf16 as the engine''s, or f32 with nothing rounded after load (CPU only)'
            cand --logits 'Rounding of logits before the argmax: bf16 as the engine''s, or f32'
            cand --max-slots 'Request slots kept resident (the engine''s max_num_seqs)'
            cand --listen 'Drafting listener; repeat for more. One client each, the newest connection wins'
            cand --control 'Listener for PING and STATS that never disturbs the drafting session; ''off'' disables it'
            cand --metrics 'Serve /metrics, /healthz and /readyz over HTTP on this address; ''off'' does not'
            cand --allow-peer 'Close drafting connections from elsewhere at accept; repeat for more [default: all may connect]'
            cand --bind-wait 'Wait this long for a listener''s address to appear on an interface'
            cand --name 'Worker name sent in HELLO replies (at most 40 ASCII bytes)'
            cand --record 'Append every request and reply to a new trace file for ''dspark replay''; a folder gets one named after the time of each start, a file that exists is refused'
            cand --record-limit 'Stop recording after this many bytes'
            cand --stall-limit 'Exit with 70 when drafting has been stuck for this long, for a supervisor to restart'
            cand --keep-warm 'Use the GPU whenever it was idle for TIME, so that its clocks stay up; a STEP that comes meanwhile waits for one pass over no rows. ''off'' lets it rest'
            cand --color 'Colour the output; NO_COLOR is honoured'
            cand --demo 'Use the tiny synthetic checkpoint inside this program: no files, no GPU'
            cand --check 'Load and verify everything, print modules, memory and the origin of every setting, and exit'
            cand --json 'Print the result as JSON on stdout (numbers in base units: bytes, microseconds)'
            cand -q 'Print nothing but the result and errors; hides progress bars'
            cand --quiet 'Print nothing but the result and errors; hides progress bars'
            cand -v 'Log more (-v debug, -vv trace); DSPARK_LOG sets exact filters'
            cand --verbose 'Log more (-v debug, -vv trace); DSPARK_LOG sets exact filters'
            cand -h 'Print help (see more with ''--help'')'
            cand --help 'Print help (see more with ''--help'')'
        }
        &'dspark;identity'= {
            cand --receipt 'Copy receipt (DSPARK_COPY_DONE); ''-'' reads stdin'
            cand --markov 'Markov cache to hash; 64 zeros are printed when none is given'
            cand --verify 'Also hash the extracted files in DIR and compare them with the receipt'
            cand --only 'Print one bare digest and nothing else'
            cand --expect-drafter 'Exit with 1 unless the drafter identity is HEX'
            cand --expect-markov 'Exit with 1 unless the Markov identity is HEX'
            cand --color 'Colour the output; NO_COLOR is honoured'
            cand --json 'Print the result as JSON on stdout (numbers in base units: bytes, microseconds)'
            cand -q 'Print nothing but the result and errors; hides progress bars'
            cand --quiet 'Print nothing but the result and errors; hides progress bars'
            cand -v 'Log more (-v debug, -vv trace); DSPARK_LOG sets exact filters'
            cand --verbose 'Log more (-v debug, -vv trace); DSPARK_LOG sets exact filters'
            cand -h 'Print help (see more with ''--help'')'
            cand --help 'Print help (see more with ''--help'')'
        }
        &'dspark;ping'= {
            cand --timeout 'Give up after this long (50ms, 2s; a bare number is milliseconds)'
            cand -c 'Number of pings'
            cand --count 'Number of pings'
            cand -i 'Pause between pings'
            cand --interval 'Pause between pings'
            cand --wait 'Retry until the first reply, for at most this long, then stop'
            cand --warn 'Remark when the p99 is above TIME; the exit code stays 0'
            cand --crit 'Exit with 1 when the p99 is above TIME'
            cand --stall 'How long a stall is one, for --check'
            cand --color 'Colour the output; NO_COLOR is honoured'
            cand --takeover 'Connect even to a drafting listener, which drops the live client'
            cand --histogram 'Print how the round trips are distributed'
            cand --check 'Exit with 1 when the worker answers but its drafting has stalled'
            cand --busy 'For --check: the engine always has requests, so that a session without STEPs is a stall'
            cand --json 'Print the result as JSON on stdout (numbers in base units: bytes, microseconds)'
            cand -q 'Print nothing but the result and errors; hides progress bars'
            cand --quiet 'Print nothing but the result and errors; hides progress bars'
            cand -v 'Log more (-v debug, -vv trace); DSPARK_LOG sets exact filters'
            cand --verbose 'Log more (-v debug, -vv trace); DSPARK_LOG sets exact filters'
            cand -h 'Print help (see more with ''--help'')'
            cand --help 'Print help (see more with ''--help'')'
        }
        &'dspark;stats'= {
            cand --timeout 'Give up after this long (50ms, 2s; a bare number is milliseconds)'
            cand --watch 'Print again every TIME, with what changed; --json then prints one object per line'
            cand --textfile 'Write OpenMetrics text to a file, for a textfile collector, and print nothing'
            cand --color 'Colour the output; NO_COLOR is honoured'
            cand --takeover 'Connect even to a drafting listener, which drops the live client'
            cand --openmetrics 'Print OpenMetrics text, the same as ''serve --metrics'' answers'
            cand --json 'Print the result as JSON on stdout (numbers in base units: bytes, microseconds)'
            cand -q 'Print nothing but the result and errors; hides progress bars'
            cand --quiet 'Print nothing but the result and errors; hides progress bars'
            cand -v 'Log more (-v debug, -vv trace); DSPARK_LOG sets exact filters'
            cand --verbose 'Log more (-v debug, -vv trace); DSPARK_LOG sets exact filters'
            cand -h 'Print help (see more with ''--help'')'
            cand --help 'Print help (see more with ''--help'')'
        }
        &'dspark;replay'= {
            cand -e 'Drafting endpoint (tcp://HOST:PORT?bind=ADDR) [default: tcp://127.0.0.1:18620]'
            cand --endpoint 'Drafting endpoint (tcp://HOST:PORT?bind=ADDR) [default: tcp://127.0.0.1:18620]'
            cand --pace 'Send rounds as recorded, as fast as replies come, or at a fixed rate per second'
            cand --rounds 'Stop after N rounds'
            cand --warmup 'Leave the first N rounds out of the latencies'
            cand -o 'Write requests, replies and local drafts to a new trace'
            cand --output 'Write requests, replies and local drafts to a new trace'
            cand --round-log 'Write one line per round to FILE, which ends in .csv or .jsonl'
            cand --policy 'What a failed round does'
            cand --on-fail 'Policy capacity: go on with zero drafts, or end the replay'
            cand --shadow-use 'Policy shadow: whose drafts the engine uses'
            cand --local 'Local drafter of policies resilience and shadow: a checkpoint directory, or the drafting endpoint of a second worker [default: the demo''s checkpoint]'
            cand --timeout 'Deadline of one round'
            cand --trip 'Failed attempts in a row that open the circuit breaker; 0 turns it off'
            cand --cooldown 'Rounds the breaker stays open'
            cand --backoff 'First pause before a reconnect, in engine time; it doubles up to 30 s. 0 reconnects at once'
            cand --fault 'Inject a fault with a probability per round: close=P, drop=P, delay=TIME@P, garbage=P, truncate=P, stale=P, duplicate=P, half-close=P'
            cand --seed 'Seed of the fault schedule; the same seed repeats the same faults'
            cand --resync-at 'Send every window again at these rounds (1 is the first)'
            cand --reconnect-at 'Drop the connection before these rounds'
            cand --worker-restart 'Shell command that restarts the worker, run before the rounds of --restart-at'
            cand --restart-at 'Rounds before which --worker-restart is run'
            cand --expect 'Compare the drafts with the replies in this trace instead of those in TRACE'
            cand --min-agreement 'Exit with 1 if a smaller share of comparable positions agrees'
            cand --near-tie 'Count a mismatch with a margin up to LOGITS as a near-tie, not as a disagreement'
            cand --color 'Colour the output; NO_COLOR is honoured'
            cand --demo 'Replay a built-in synthetic trace that matches ''dspark serve --demo''; without --endpoint, against a demo worker started for it'
            cand --async 'Go on while a request is in flight, as the engine''s asynchronous proxy does: a late reply makes the next round late instead of moving the schedule'
            cand --margins 'Ask for draft margins (step flag WANT_MARGIN)'
            cand --allow-failures 'Exit with 0 even if rounds failed'
            cand --verify 'At the end draft every live slot twice, over the worker''s own windows and over windows sent anew, and compare: on by itself when faults are injected'
            cand --json 'Print the result as JSON on stdout (numbers in base units: bytes, microseconds)'
            cand -q 'Print nothing but the result and errors; hides progress bars'
            cand --quiet 'Print nothing but the result and errors; hides progress bars'
            cand -v 'Log more (-v debug, -vv trace); DSPARK_LOG sets exact filters'
            cand --verbose 'Log more (-v debug, -vv trace); DSPARK_LOG sets exact filters'
            cand -h 'Print help (see more with ''--help'')'
            cand --help 'Print help (see more with ''--help'')'
        }
        &'dspark;shadow-diff'= {
            cand --trace 'Rounds that drive live sides, when LEFT is no trace'
            cand --min-agreement 'Exit with 1 if fewer comparable positions agree'
            cand --near-tie 'Count a mismatch with a margin up to LOGITS as a near-tie, not as a disagreement'
            cand --show 'List the first N mismatching blocks, largest margin first'
            cand --plot 'Draw agreement by position and mismatches by margin into an SVG file'
            cand --timeout 'Deadline of one round on a live side'
            cand --color 'Colour the output; NO_COLOR is honoured'
            cand --json 'Print the result as JSON on stdout (numbers in base units: bytes, microseconds)'
            cand -q 'Print nothing but the result and errors; hides progress bars'
            cand --quiet 'Print nothing but the result and errors; hides progress bars'
            cand -v 'Log more (-v debug, -vv trace); DSPARK_LOG sets exact filters'
            cand --verbose 'Log more (-v debug, -vv trace); DSPARK_LOG sets exact filters'
            cand -h 'Print help (see more with ''--help'')'
            cand --help 'Print help (see more with ''--help'')'
        }
        &'dspark;gpu-check'= {
            cand --only 'Only cases whose name contains NAME'
            cand --out 'Also write the document that --json prints to DIR/gpu-check.json'
            cand --device 'Index of the GPU'
            cand --limit 'End a stage after this long [default: 1 to 15 minutes, by stage]'
            cand --color 'Colour the output; NO_COLOR is honoured'
            cand --in-process 'Run the stages in this process, without limits; print one JSON line each'
            cand --json 'Print the result as JSON on stdout (numbers in base units: bytes, microseconds)'
            cand -q 'Print nothing but the result and errors; hides progress bars'
            cand --quiet 'Print nothing but the result and errors; hides progress bars'
            cand -v 'Log more (-v debug, -vv trace); DSPARK_LOG sets exact filters'
            cand --verbose 'Log more (-v debug, -vv trace); DSPARK_LOG sets exact filters'
            cand -h 'Print help (see more with ''--help'')'
            cand --help 'Print help (see more with ''--help'')'
        }
        &'dspark;top'= {
            cand --timeout 'Give up after this long (50ms, 2s; a bare number is milliseconds)'
            cand -i 'Refresh interval, 50ms or more'
            cand --interval 'Refresh interval, 50ms or more'
            cand --color 'Colour the output; NO_COLOR is honoured'
            cand --takeover 'Connect even to a drafting listener, which drops the live client'
            cand --once 'Print one picture as text and exit; the default when stdout is not a terminal'
            cand --ascii 'Draw with ASCII characters only'
            cand --json 'Print the result as JSON on stdout (numbers in base units: bytes, microseconds)'
            cand -q 'Print nothing but the result and errors; hides progress bars'
            cand --quiet 'Print nothing but the result and errors; hides progress bars'
            cand -v 'Log more (-v debug, -vv trace); DSPARK_LOG sets exact filters'
            cand --verbose 'Log more (-v debug, -vv trace); DSPARK_LOG sets exact filters'
            cand -h 'Print help (see more with ''--help'')'
            cand --help 'Print help (see more with ''--help'')'
        }
        &'dspark;doctor'= {
            cand --checkpoint 'Also look at the files of a checkpoint'
            cand --receipt 'Its copy receipt [default: DIR/DSPARK_COPY_DONE]'
            cand --markov 'Its Markov cache [default: DIR/markov_top_tokens.json where there is one]'
            cand --color 'Colour the output; NO_COLOR is honoured'
            cand --verify 'Hash its files, as ''serve'' does at its start'
            cand --json 'Print the result as JSON on stdout (numbers in base units: bytes, microseconds)'
            cand -q 'Print nothing but the result and errors; hides progress bars'
            cand --quiet 'Print nothing but the result and errors; hides progress bars'
            cand -v 'Log more (-v debug, -vv trace); DSPARK_LOG sets exact filters'
            cand --verbose 'Log more (-v debug, -vv trace); DSPARK_LOG sets exact filters'
            cand -h 'Print help (see more with ''--help'')'
            cand --help 'Print help (see more with ''--help'')'
        }
        &'dspark;trace'= {
            cand --color 'Colour the output; NO_COLOR is honoured'
            cand --json 'Print the result as JSON on stdout (numbers in base units: bytes, microseconds)'
            cand -q 'Print nothing but the result and errors; hides progress bars'
            cand --quiet 'Print nothing but the result and errors; hides progress bars'
            cand -v 'Log more (-v debug, -vv trace); DSPARK_LOG sets exact filters'
            cand --verbose 'Log more (-v debug, -vv trace); DSPARK_LOG sets exact filters'
            cand -h 'Print help (see more with ''--help'')'
            cand --help 'Print help (see more with ''--help'')'
            cand info 'Count what a trace holds and name its anomalies'
            cand cut 'Keep a range of rounds, made self-contained by a leading resync'
            cand merge 'Join traces of one checkpoint, one after another'
            cand synth 'Write a synthetic trace for a checkpoint''s geometry'
            cand help 'Print this message or the help of the given subcommand(s)'
        }
        &'dspark;trace;info'= {
            cand --color 'Colour the output; NO_COLOR is honoured'
            cand --json 'Print the result as JSON on stdout (numbers in base units: bytes, microseconds)'
            cand -q 'Print nothing but the result and errors; hides progress bars'
            cand --quiet 'Print nothing but the result and errors; hides progress bars'
            cand -v 'Log more (-v debug, -vv trace); DSPARK_LOG sets exact filters'
            cand --verbose 'Log more (-v debug, -vv trace); DSPARK_LOG sets exact filters'
            cand -h 'Print help (see more with ''--help'')'
            cand --help 'Print help (see more with ''--help'')'
        }
        &'dspark;trace;cut'= {
            cand -o 'Trace file to write; it must not exist'
            cand --output 'Trace file to write; it must not exist'
            cand --color 'Colour the output; NO_COLOR is honoured'
            cand --json 'Print the result as JSON on stdout (numbers in base units: bytes, microseconds)'
            cand -q 'Print nothing but the result and errors; hides progress bars'
            cand --quiet 'Print nothing but the result and errors; hides progress bars'
            cand -v 'Log more (-v debug, -vv trace); DSPARK_LOG sets exact filters'
            cand --verbose 'Log more (-v debug, -vv trace); DSPARK_LOG sets exact filters'
            cand -h 'Print help (see more with ''--help'')'
            cand --help 'Print help (see more with ''--help'')'
        }
        &'dspark;trace;merge'= {
            cand -o 'Trace file to write; it must not exist'
            cand --output 'Trace file to write; it must not exist'
            cand --color 'Colour the output; NO_COLOR is honoured'
            cand --json 'Print the result as JSON on stdout (numbers in base units: bytes, microseconds)'
            cand -q 'Print nothing but the result and errors; hides progress bars'
            cand --quiet 'Print nothing but the result and errors; hides progress bars'
            cand -v 'Log more (-v debug, -vv trace); DSPARK_LOG sets exact filters'
            cand --verbose 'Log more (-v debug, -vv trace); DSPARK_LOG sets exact filters'
            cand -h 'Print help (see more with ''--help'')'
            cand --help 'Print help (see more with ''--help'')'
        }
        &'dspark;trace;synth'= {
            cand --checkpoint 'Directory with config.json and the extracted drafter tensors'
            cand --receipt 'Copy receipt that the drafter identity is computed from [default: DIR/DSPARK_COPY_DONE]'
            cand --markov 'Markov cache [default: DIR/markov_top_tokens.json where there is one]'
            cand --synthetic 'Use random weights made in memory, of the live drafter''s size (live: 9.1 GB) or the demo''s (small): for measurements, drafts mean nothing'
            cand --rounds 'STEPs to write'
            cand --seed 'The same seed gives the same bytes'
            cand --requests 'Requests decoding at once, at most'
            cand --scenario 'What may happen, comma-separated [default: all but near-max-len]'
            cand -o 'Trace file to write; it must not exist'
            cand --output 'Trace file to write; it must not exist'
            cand --color 'Colour the output; NO_COLOR is honoured'
            cand --demo 'Use the tiny synthetic checkpoint inside this program: no files, no GPU'
            cand --json 'Print the result as JSON on stdout (numbers in base units: bytes, microseconds)'
            cand -q 'Print nothing but the result and errors; hides progress bars'
            cand --quiet 'Print nothing but the result and errors; hides progress bars'
            cand -v 'Log more (-v debug, -vv trace); DSPARK_LOG sets exact filters'
            cand --verbose 'Log more (-v debug, -vv trace); DSPARK_LOG sets exact filters'
            cand -h 'Print help (see more with ''--help'')'
            cand --help 'Print help (see more with ''--help'')'
        }
        &'dspark;trace;help'= {
            cand info 'Count what a trace holds and name its anomalies'
            cand cut 'Keep a range of rounds, made self-contained by a leading resync'
            cand merge 'Join traces of one checkpoint, one after another'
            cand synth 'Write a synthetic trace for a checkpoint''s geometry'
            cand help 'Print this message or the help of the given subcommand(s)'
        }
        &'dspark;trace;help;info'= {
        }
        &'dspark;trace;help;cut'= {
        }
        &'dspark;trace;help;merge'= {
        }
        &'dspark;trace;help;synth'= {
        }
        &'dspark;trace;help;help'= {
        }
        &'dspark;completions'= {
            cand --color 'Colour the output; NO_COLOR is honoured'
            cand --json 'Print the result as JSON on stdout (numbers in base units: bytes, microseconds)'
            cand -q 'Print nothing but the result and errors; hides progress bars'
            cand --quiet 'Print nothing but the result and errors; hides progress bars'
            cand -v 'Log more (-v debug, -vv trace); DSPARK_LOG sets exact filters'
            cand --verbose 'Log more (-v debug, -vv trace); DSPARK_LOG sets exact filters'
            cand -h 'Print help (see more with ''--help'')'
            cand --help 'Print help (see more with ''--help'')'
        }
        &'dspark;man'= {
            cand --color 'Colour the output; NO_COLOR is honoured'
            cand --json 'Print the result as JSON on stdout (numbers in base units: bytes, microseconds)'
            cand -q 'Print nothing but the result and errors; hides progress bars'
            cand --quiet 'Print nothing but the result and errors; hides progress bars'
            cand -v 'Log more (-v debug, -vv trace); DSPARK_LOG sets exact filters'
            cand --verbose 'Log more (-v debug, -vv trace); DSPARK_LOG sets exact filters'
            cand -h 'Print help (see more with ''--help'')'
            cand --help 'Print help (see more with ''--help'')'
        }
        &'dspark;help'= {
            cand serve 'Run the drafter worker until SIGINT or SIGTERM'
            cand identity 'Print the drafter and Markov identities that HELLO exchanges'
            cand ping 'Measure the round trip to a worker, or wait until it is ready'
            cand stats 'Show the worker''s counters and latency percentiles'
            cand replay 'Drive a worker with recorded taps, as Spark rank 0 would'
            cand shadow-diff 'Compare two sets of drafts round by round'
            cand gpu-check 'Check a GPU and measure drafting on it'
            cand top 'Watch workers live in the terminal'
            cand doctor 'Check what this machine can run and say how to fix what is missing'
            cand trace 'Inspect and make trace files'
            cand completions 'Print a shell completion script'
            cand man 'Write the manual pages, one per command'
            cand help 'Print this message or the help of the given subcommand(s)'
        }
        &'dspark;help;serve'= {
        }
        &'dspark;help;identity'= {
        }
        &'dspark;help;ping'= {
        }
        &'dspark;help;stats'= {
        }
        &'dspark;help;replay'= {
        }
        &'dspark;help;shadow-diff'= {
        }
        &'dspark;help;gpu-check'= {
        }
        &'dspark;help;top'= {
        }
        &'dspark;help;doctor'= {
        }
        &'dspark;help;trace'= {
            cand info 'Count what a trace holds and name its anomalies'
            cand cut 'Keep a range of rounds, made self-contained by a leading resync'
            cand merge 'Join traces of one checkpoint, one after another'
            cand synth 'Write a synthetic trace for a checkpoint''s geometry'
        }
        &'dspark;help;trace;info'= {
        }
        &'dspark;help;trace;cut'= {
        }
        &'dspark;help;trace;merge'= {
        }
        &'dspark;help;trace;synth'= {
        }
        &'dspark;help;completions'= {
        }
        &'dspark;help;man'= {
        }
        &'dspark;help;help'= {
        }
    ]
    $completions[$command]
}
