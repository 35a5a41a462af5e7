# Print an optspec for argparse to handle cmd's options that are independent of any subcommand.
function __fish_dspark_global_optspecs
    string join \n json q/quiet v/verbose color= h/help V/version
end

function __fish_dspark_needs_command
    # Figure out if the current invocation already has a command.
    set -l cmd (commandline -opc)
    set -e cmd[1]
    argparse -s (__fish_dspark_global_optspecs) -- $cmd 2>/dev/null
    or return
    if set -q argv[1]
        # Also print the command, so this can be used to figure out what it is.
        echo $argv[1]
        return 1
    end
    return 0
end

function __fish_dspark_using_subcommand
    set -l cmd (__fish_dspark_needs_command)
    test -z "$cmd"
    and return 1
    contains -- $cmd[1] $argv
end

complete -c dspark -n "__fish_dspark_needs_command" -l color -d 'Colour the output; NO_COLOR is honoured' -r -f -a "auto\t'On a terminal, unless NO_COLOR is set'
always\t'Always'
never\t'Never'"
complete -c dspark -n "__fish_dspark_needs_command" -l json -d 'Print the result as JSON on stdout (numbers in base units: bytes, microseconds)'
complete -c dspark -n "__fish_dspark_needs_command" -s q -l quiet -d 'Print nothing but the result and errors; hides progress bars'
complete -c dspark -n "__fish_dspark_needs_command" -s v -l verbose -d 'Log more (-v debug, -vv trace); DSPARK_LOG sets exact filters'
complete -c dspark -n "__fish_dspark_needs_command" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c dspark -n "__fish_dspark_needs_command" -s V -l version -d 'Print version'
complete -c dspark -n "__fish_dspark_needs_command" -f -a "serve" -d 'Run the drafter worker until SIGINT or SIGTERM'
complete -c dspark -n "__fish_dspark_needs_command" -f -a "identity" -d 'Print the drafter and Markov identities that HELLO exchanges'
complete -c dspark -n "__fish_dspark_needs_command" -f -a "ping" -d 'Measure the round trip to a worker, or wait until it is ready'
complete -c dspark -n "__fish_dspark_needs_command" -f -a "stats" -d 'Show the worker\'s counters and latency percentiles'
complete -c dspark -n "__fish_dspark_needs_command" -f -a "replay" -d 'Drive a worker with recorded taps, as Spark rank 0 would'
complete -c dspark -n "__fish_dspark_needs_command" -f -a "shadow-diff" -d 'Compare two sets of drafts round by round'
complete -c dspark -n "__fish_dspark_needs_command" -f -a "gpu-check" -d 'Check a GPU and measure drafting on it'
complete -c dspark -n "__fish_dspark_needs_command" -f -a "top" -d 'Watch workers live in the terminal'
complete -c dspark -n "__fish_dspark_needs_command" -f -a "doctor" -d 'Check what this machine can run and say how to fix what is missing'
complete -c dspark -n "__fish_dspark_needs_command" -f -a "trace" -d 'Inspect and make trace files'
complete -c dspark -n "__fish_dspark_needs_command" -f -a "completions" -d 'Print a shell completion script'
complete -c dspark -n "__fish_dspark_needs_command" -f -a "man" -d 'Write the manual pages, one per command'
complete -c dspark -n "__fish_dspark_needs_command" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c dspark -n "__fish_dspark_using_subcommand serve" -l checkpoint -d 'Directory with config.json and the extracted drafter tensors' -r -F
complete -c dspark -n "__fish_dspark_using_subcommand serve" -l receipt -d 'Copy receipt that the drafter identity is computed from [default: DIR/DSPARK_COPY_DONE]' -r -F
complete -c dspark -n "__fish_dspark_using_subcommand serve" -l markov -d 'Markov cache [default: DIR/markov_top_tokens.json where there is one]' -r -F
complete -c dspark -n "__fish_dspark_using_subcommand serve" -l synthetic -d 'Use random weights made in memory, of the live drafter\'s size (live: 9.1 GB) or the demo\'s (small): for measurements, drafts mean nothing' -r
complete -c dspark -n "__fish_dspark_using_subcommand serve" -l backend -d 'Where drafting runs; auto takes the GPU when one is usable' -r -f -a "auto\t'The GPU when one is usable, else the CPU'
cuda\t'An NVIDIA GPU'
cpu\t'The CPU'"
complete -c dspark -n "__fish_dspark_using_subcommand serve" -l device -d 'Index of the GPU' -r
complete -c dspark -n "__fish_dspark_using_subcommand serve" -l precision -d 'Rounding of activations: bf16 as the engine\'s, or f32 with nothing rounded after load (CPU only)' -r -f -a "bf16\t'bfloat16'
f32\t'Single precision'"
complete -c dspark -n "__fish_dspark_using_subcommand serve" -l logits -d 'Rounding of logits before the argmax: bf16 as the engine\'s, or f32' -r -f -a "bf16\t'bfloat16'
f32\t'Single precision'"
complete -c dspark -n "__fish_dspark_using_subcommand serve" -l max-slots -d 'Request slots kept resident (the engine\'s max_num_seqs)' -r
complete -c dspark -n "__fish_dspark_using_subcommand serve" -l listen -d 'Drafting listener; repeat for more. One client each, the newest connection wins' -r
complete -c dspark -n "__fish_dspark_using_subcommand serve" -l control -d 'Listener for PING and STATS that never disturbs the drafting session; \'off\' disables it' -r
complete -c dspark -n "__fish_dspark_using_subcommand serve" -l metrics -d 'Serve /metrics, /healthz and /readyz over HTTP on this address; \'off\' does not' -r
complete -c dspark -n "__fish_dspark_using_subcommand serve" -l allow-peer -d 'Close drafting connections from elsewhere at accept; repeat for more [default: all may connect]' -r
complete -c dspark -n "__fish_dspark_using_subcommand serve" -l bind-wait -d 'Wait this long for a listener\'s address to appear on an interface' -r
complete -c dspark -n "__fish_dspark_using_subcommand serve" -l name -d 'Worker name sent in HELLO replies (at most 40 ASCII bytes)' -r
complete -c dspark -n "__fish_dspark_using_subcommand serve" -l record -d 'Append every request and reply to a new trace file for \'dspark replay\'; a folder gets one named after the time of each start, a file that exists is refused' -r -F
complete -c dspark -n "__fish_dspark_using_subcommand serve" -l record-limit -d 'Stop recording after this many bytes' -r
complete -c dspark -n "__fish_dspark_using_subcommand serve" -l stall-limit -d 'Exit with 70 when drafting has been stuck for this long, for a supervisor to restart' -r
complete -c dspark -n "__fish_dspark_using_subcommand serve" -l keep-warm -d 'Use the GPU whenever it was idle for TIME, so that its clocks stay up; a STEP that comes meanwhile waits for one pass over no rows. \'off\' lets it rest' -r
complete -c dspark -n "__fish_dspark_using_subcommand serve" -l color -d 'Colour the output; NO_COLOR is honoured' -r -f -a "auto\t'On a terminal, unless NO_COLOR is set'
always\t'Always'
never\t'Never'"
complete -c dspark -n "__fish_dspark_using_subcommand serve" -l demo -d 'Use the tiny synthetic checkpoint inside this program: no files, no GPU'
complete -c dspark -n "__fish_dspark_using_subcommand serve" -l check -d 'Load and verify everything, print modules, memory and the origin of every setting, and exit'
complete -c dspark -n "__fish_dspark_using_subcommand serve" -l json -d 'Print the result as JSON on stdout (numbers in base units: bytes, microseconds)'
complete -c dspark -n "__fish_dspark_using_subcommand serve" -s q -l quiet -d 'Print nothing but the result and errors; hides progress bars'
complete -c dspark -n "__fish_dspark_using_subcommand serve" -s v -l verbose -d 'Log more (-v debug, -vv trace); DSPARK_LOG sets exact filters'
complete -c dspark -n "__fish_dspark_using_subcommand serve" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c dspark -n "__fish_dspark_using_subcommand identity" -l receipt -d 'Copy receipt (DSPARK_COPY_DONE); \'-\' reads stdin' -r -F
complete -c dspark -n "__fish_dspark_using_subcommand identity" -l markov -d 'Markov cache to hash; 64 zeros are printed when none is given' -r -F
complete -c dspark -n "__fish_dspark_using_subcommand identity" -l verify -d 'Also hash the extracted files in DIR and compare them with the receipt' -r -F
complete -c dspark -n "__fish_dspark_using_subcommand identity" -l only -d 'Print one bare digest and nothing else' -r -f -a "drafter\t''
markov\t''"
complete -c dspark -n "__fish_dspark_using_subcommand identity" -l expect-drafter -d 'Exit with 1 unless the drafter identity is HEX' -r
complete -c dspark -n "__fish_dspark_using_subcommand identity" -l expect-markov -d 'Exit with 1 unless the Markov identity is HEX' -r
complete -c dspark -n "__fish_dspark_using_subcommand identity" -l color -d 'Colour the output; NO_COLOR is honoured' -r -f -a "auto\t'On a terminal, unless NO_COLOR is set'
always\t'Always'
never\t'Never'"
complete -c dspark -n "__fish_dspark_using_subcommand identity" -l json -d 'Print the result as JSON on stdout (numbers in base units: bytes, microseconds)'
complete -c dspark -n "__fish_dspark_using_subcommand identity" -s q -l quiet -d 'Print nothing but the result and errors; hides progress bars'
complete -c dspark -n "__fish_dspark_using_subcommand identity" -s v -l verbose -d 'Log more (-v debug, -vv trace); DSPARK_LOG sets exact filters'
complete -c dspark -n "__fish_dspark_using_subcommand identity" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c dspark -n "__fish_dspark_using_subcommand ping" -l timeout -d 'Give up after this long (50ms, 2s; a bare number is milliseconds)' -r
complete -c dspark -n "__fish_dspark_using_subcommand ping" -s c -l count -d 'Number of pings' -r
complete -c dspark -n "__fish_dspark_using_subcommand ping" -s i -l interval -d 'Pause between pings' -r
complete -c dspark -n "__fish_dspark_using_subcommand ping" -l wait -d 'Retry until the first reply, for at most this long, then stop' -r
complete -c dspark -n "__fish_dspark_using_subcommand ping" -l warn -d 'Remark when the p99 is above TIME; the exit code stays 0' -r
complete -c dspark -n "__fish_dspark_using_subcommand ping" -l crit -d 'Exit with 1 when the p99 is above TIME' -r
complete -c dspark -n "__fish_dspark_using_subcommand ping" -l stall -d 'How long a stall is one, for --check' -r
complete -c dspark -n "__fish_dspark_using_subcommand ping" -l color -d 'Colour the output; NO_COLOR is honoured' -r -f -a "auto\t'On a terminal, unless NO_COLOR is set'
always\t'Always'
never\t'Never'"
complete -c dspark -n "__fish_dspark_using_subcommand ping" -l takeover -d 'Connect even to a drafting listener, which drops the live client'
complete -c dspark -n "__fish_dspark_using_subcommand ping" -l histogram -d 'Print how the round trips are distributed'
complete -c dspark -n "__fish_dspark_using_subcommand ping" -l check -d 'Exit with 1 when the worker answers but its drafting has stalled'
complete -c dspark -n "__fish_dspark_using_subcommand ping" -l busy -d 'For --check: the engine always has requests, so that a session without STEPs is a stall'
complete -c dspark -n "__fish_dspark_using_subcommand ping" -l json -d 'Print the result as JSON on stdout (numbers in base units: bytes, microseconds)'
complete -c dspark -n "__fish_dspark_using_subcommand ping" -s q -l quiet -d 'Print nothing but the result and errors; hides progress bars'
complete -c dspark -n "__fish_dspark_using_subcommand ping" -s v -l verbose -d 'Log more (-v debug, -vv trace); DSPARK_LOG sets exact filters'
complete -c dspark -n "__fish_dspark_using_subcommand ping" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c dspark -n "__fish_dspark_using_subcommand stats" -l timeout -d 'Give up after this long (50ms, 2s; a bare number is milliseconds)' -r
complete -c dspark -n "__fish_dspark_using_subcommand stats" -l watch -d 'Print again every TIME, with what changed; --json then prints one object per line' -r
complete -c dspark -n "__fish_dspark_using_subcommand stats" -l textfile -d 'Write OpenMetrics text to a file, for a textfile collector, and print nothing' -r -F
complete -c dspark -n "__fish_dspark_using_subcommand stats" -l color -d 'Colour the output; NO_COLOR is honoured' -r -f -a "auto\t'On a terminal, unless NO_COLOR is set'
always\t'Always'
never\t'Never'"
complete -c dspark -n "__fish_dspark_using_subcommand stats" -l takeover -d 'Connect even to a drafting listener, which drops the live client'
complete -c dspark -n "__fish_dspark_using_subcommand stats" -l openmetrics -d 'Print OpenMetrics text, the same as \'serve --metrics\' answers'
complete -c dspark -n "__fish_dspark_using_subcommand stats" -l json -d 'Print the result as JSON on stdout (numbers in base units: bytes, microseconds)'
complete -c dspark -n "__fish_dspark_using_subcommand stats" -s q -l quiet -d 'Print nothing but the result and errors; hides progress bars'
complete -c dspark -n "__fish_dspark_using_subcommand stats" -s v -l verbose -d 'Log more (-v debug, -vv trace); DSPARK_LOG sets exact filters'
complete -c dspark -n "__fish_dspark_using_subcommand stats" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c dspark -n "__fish_dspark_using_subcommand replay" -s e -l endpoint -d 'Drafting endpoint (tcp://HOST:PORT?bind=ADDR) [default: tcp://127.0.0.1:18620]' -r
complete -c dspark -n "__fish_dspark_using_subcommand replay" -l pace -d 'Send rounds as recorded, as fast as replies come, or at a fixed rate per second' -r
complete -c dspark -n "__fish_dspark_using_subcommand replay" -l rounds -d 'Stop after N rounds' -r
complete -c dspark -n "__fish_dspark_using_subcommand replay" -l warmup -d 'Leave the first N rounds out of the latencies' -r
complete -c dspark -n "__fish_dspark_using_subcommand replay" -s o -l output -d 'Write requests, replies and local drafts to a new trace' -r -F
complete -c dspark -n "__fish_dspark_using_subcommand replay" -l round-log -d 'Write one line per round to FILE, which ends in .csv or .jsonl' -r -F
complete -c dspark -n "__fish_dspark_using_subcommand replay" -l policy -d 'What a failed round does' -r -f -a "capacity\t'Zero drafts'
resilience\t'A local drafter takes the round'
shadow\t'Both draft every round and are compared'"
complete -c dspark -n "__fish_dspark_using_subcommand replay" -l on-fail -d 'Policy capacity: go on with zero drafts, or end the replay' -r -f -a "zero\t'Zero drafts'
raise\t'The replay ends'"
complete -c dspark -n "__fish_dspark_using_subcommand replay" -l shadow-use -d 'Policy shadow: whose drafts the engine uses' -r -f -a "local\t'The local drafter\'s'
remote\t'The worker\'s'"
complete -c dspark -n "__fish_dspark_using_subcommand replay" -l local -d 'Local drafter of policies resilience and shadow: a checkpoint directory, or the drafting endpoint of a second worker [default: the demo\'s checkpoint]' -r
complete -c dspark -n "__fish_dspark_using_subcommand replay" -l timeout -d 'Deadline of one round' -r
complete -c dspark -n "__fish_dspark_using_subcommand replay" -l trip -d 'Failed attempts in a row that open the circuit breaker; 0 turns it off' -r
complete -c dspark -n "__fish_dspark_using_subcommand replay" -l cooldown -d 'Rounds the breaker stays open' -r
complete -c dspark -n "__fish_dspark_using_subcommand replay" -l backoff -d 'First pause before a reconnect, in engine time; it doubles up to 30 s. 0 reconnects at once' -r
complete -c dspark -n "__fish_dspark_using_subcommand replay" -l fault -d 'Inject a fault with a probability per round: close=P, drop=P, delay=TIME@P, garbage=P, truncate=P, stale=P, duplicate=P, half-close=P' -r
complete -c dspark -n "__fish_dspark_using_subcommand replay" -l seed -d 'Seed of the fault schedule; the same seed repeats the same faults' -r
complete -c dspark -n "__fish_dspark_using_subcommand replay" -l resync-at -d 'Send every window again at these rounds (1 is the first)' -r
complete -c dspark -n "__fish_dspark_using_subcommand replay" -l reconnect-at -d 'Drop the connection before these rounds' -r
complete -c dspark -n "__fish_dspark_using_subcommand replay" -l worker-restart -d 'Shell command that restarts the worker, run before the rounds of --restart-at' -r
complete -c dspark -n "__fish_dspark_using_subcommand replay" -l restart-at -d 'Rounds before which --worker-restart is run' -r
complete -c dspark -n "__fish_dspark_using_subcommand replay" -l expect -d 'Compare the drafts with the replies in this trace instead of those in TRACE' -r -F
complete -c dspark -n "__fish_dspark_using_subcommand replay" -l min-agreement -d 'Exit with 1 if a smaller share of comparable positions agrees' -r
complete -c dspark -n "__fish_dspark_using_subcommand replay" -l near-tie -d 'Count a mismatch with a margin up to LOGITS as a near-tie, not as a disagreement' -r
complete -c dspark -n "__fish_dspark_using_subcommand replay" -l color -d 'Colour the output; NO_COLOR is honoured' -r -f -a "auto\t'On a terminal, unless NO_COLOR is set'
always\t'Always'
never\t'Never'"
complete -c dspark -n "__fish_dspark_using_subcommand replay" -l demo -d 'Replay a built-in synthetic trace that matches \'dspark serve --demo\'; without --endpoint, against a demo worker started for it'
complete -c dspark -n "__fish_dspark_using_subcommand replay" -l async -d 'Go on while a request is in flight, as the engine\'s asynchronous proxy does: a late reply makes the next round late instead of moving the schedule'
complete -c dspark -n "__fish_dspark_using_subcommand replay" -l margins -d 'Ask for draft margins (step flag WANT_MARGIN)'
complete -c dspark -n "__fish_dspark_using_subcommand replay" -l allow-failures -d 'Exit with 0 even if rounds failed'
complete -c dspark -n "__fish_dspark_using_subcommand replay" -l verify -d 'At the end draft every live slot twice, over the worker\'s own windows and over windows sent anew, and compare: on by itself when faults are injected'
complete -c dspark -n "__fish_dspark_using_subcommand replay" -l json -d 'Print the result as JSON on stdout (numbers in base units: bytes, microseconds)'
complete -c dspark -n "__fish_dspark_using_subcommand replay" -s q -l quiet -d 'Print nothing but the result and errors; hides progress bars'
complete -c dspark -n "__fish_dspark_using_subcommand replay" -s v -l verbose -d 'Log more (-v debug, -vv trace); DSPARK_LOG sets exact filters'
complete -c dspark -n "__fish_dspark_using_subcommand replay" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c dspark -n "__fish_dspark_using_subcommand shadow-diff" -l trace -d 'Rounds that drive live sides, when LEFT is no trace' -r -F
complete -c dspark -n "__fish_dspark_using_subcommand shadow-diff" -l min-agreement -d 'Exit with 1 if fewer comparable positions agree' -r
complete -c dspark -n "__fish_dspark_using_subcommand shadow-diff" -l near-tie -d 'Count a mismatch with a margin up to LOGITS as a near-tie, not as a disagreement' -r
complete -c dspark -n "__fish_dspark_using_subcommand shadow-diff" -l show -d 'List the first N mismatching blocks, largest margin first' -r
complete -c dspark -n "__fish_dspark_using_subcommand shadow-diff" -l plot -d 'Draw agreement by position and mismatches by margin into an SVG file' -r -F
complete -c dspark -n "__fish_dspark_using_subcommand shadow-diff" -l timeout -d 'Deadline of one round on a live side' -r
complete -c dspark -n "__fish_dspark_using_subcommand shadow-diff" -l color -d 'Colour the output; NO_COLOR is honoured' -r -f -a "auto\t'On a terminal, unless NO_COLOR is set'
always\t'Always'
never\t'Never'"
complete -c dspark -n "__fish_dspark_using_subcommand shadow-diff" -l json -d 'Print the result as JSON on stdout (numbers in base units: bytes, microseconds)'
complete -c dspark -n "__fish_dspark_using_subcommand shadow-diff" -s q -l quiet -d 'Print nothing but the result and errors; hides progress bars'
complete -c dspark -n "__fish_dspark_using_subcommand shadow-diff" -s v -l verbose -d 'Log more (-v debug, -vv trace); DSPARK_LOG sets exact filters'
complete -c dspark -n "__fish_dspark_using_subcommand shadow-diff" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c dspark -n "__fish_dspark_using_subcommand gpu-check" -l only -d 'Only cases whose name contains NAME' -r
complete -c dspark -n "__fish_dspark_using_subcommand gpu-check" -l out -d 'Also write the document that --json prints to DIR/gpu-check.json' -r -F
complete -c dspark -n "__fish_dspark_using_subcommand gpu-check" -l device -d 'Index of the GPU' -r
complete -c dspark -n "__fish_dspark_using_subcommand gpu-check" -l limit -d 'End a stage after this long [default: 1 to 15 minutes, by stage]' -r
complete -c dspark -n "__fish_dspark_using_subcommand gpu-check" -l color -d 'Colour the output; NO_COLOR is honoured' -r -f -a "auto\t'On a terminal, unless NO_COLOR is set'
always\t'Always'
never\t'Never'"
complete -c dspark -n "__fish_dspark_using_subcommand gpu-check" -l in-process -d 'Run the stages in this process, without limits; print one JSON line each'
complete -c dspark -n "__fish_dspark_using_subcommand gpu-check" -l json -d 'Print the result as JSON on stdout (numbers in base units: bytes, microseconds)'
complete -c dspark -n "__fish_dspark_using_subcommand gpu-check" -s q -l quiet -d 'Print nothing but the result and errors; hides progress bars'
complete -c dspark -n "__fish_dspark_using_subcommand gpu-check" -s v -l verbose -d 'Log more (-v debug, -vv trace); DSPARK_LOG sets exact filters'
complete -c dspark -n "__fish_dspark_using_subcommand gpu-check" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c dspark -n "__fish_dspark_using_subcommand top" -l timeout -d 'Give up after this long (50ms, 2s; a bare number is milliseconds)' -r
complete -c dspark -n "__fish_dspark_using_subcommand top" -s i -l interval -d 'Refresh interval, 50ms or more' -r
complete -c dspark -n "__fish_dspark_using_subcommand top" -l color -d 'Colour the output; NO_COLOR is honoured' -r -f -a "auto\t'On a terminal, unless NO_COLOR is set'
always\t'Always'
never\t'Never'"
complete -c dspark -n "__fish_dspark_using_subcommand top" -l takeover -d 'Connect even to a drafting listener, which drops the live client'
complete -c dspark -n "__fish_dspark_using_subcommand top" -l once -d 'Print one picture as text and exit; the default when stdout is not a terminal'
complete -c dspark -n "__fish_dspark_using_subcommand top" -l ascii -d 'Draw with ASCII characters only'
complete -c dspark -n "__fish_dspark_using_subcommand top" -l json -d 'Print the result as JSON on stdout (numbers in base units: bytes, microseconds)'
complete -c dspark -n "__fish_dspark_using_subcommand top" -s q -l quiet -d 'Print nothing but the result and errors; hides progress bars'
complete -c dspark -n "__fish_dspark_using_subcommand top" -s v -l verbose -d 'Log more (-v debug, -vv trace); DSPARK_LOG sets exact filters'
complete -c dspark -n "__fish_dspark_using_subcommand top" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c dspark -n "__fish_dspark_using_subcommand doctor" -l checkpoint -d 'Also look at the files of a checkpoint' -r -F
complete -c dspark -n "__fish_dspark_using_subcommand doctor" -l receipt -d 'Its copy receipt [default: DIR/DSPARK_COPY_DONE]' -r -F
complete -c dspark -n "__fish_dspark_using_subcommand doctor" -l markov -d 'Its Markov cache [default: DIR/markov_top_tokens.json where there is one]' -r -F
complete -c dspark -n "__fish_dspark_using_subcommand doctor" -l color -d 'Colour the output; NO_COLOR is honoured' -r -f -a "auto\t'On a terminal, unless NO_COLOR is set'
always\t'Always'
never\t'Never'"
complete -c dspark -n "__fish_dspark_using_subcommand doctor" -l verify -d 'Hash its files, as \'serve\' does at its start'
complete -c dspark -n "__fish_dspark_using_subcommand doctor" -l json -d 'Print the result as JSON on stdout (numbers in base units: bytes, microseconds)'
complete -c dspark -n "__fish_dspark_using_subcommand doctor" -s q -l quiet -d 'Print nothing but the result and errors; hides progress bars'
complete -c dspark -n "__fish_dspark_using_subcommand doctor" -s v -l verbose -d 'Log more (-v debug, -vv trace); DSPARK_LOG sets exact filters'
complete -c dspark -n "__fish_dspark_using_subcommand doctor" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c dspark -n "__fish_dspark_using_subcommand trace; and not __fish_seen_subcommand_from info cut merge synth help" -l color -d 'Colour the output; NO_COLOR is honoured' -r -f -a "auto\t'On a terminal, unless NO_COLOR is set'
always\t'Always'
never\t'Never'"
complete -c dspark -n "__fish_dspark_using_subcommand trace; and not __fish_seen_subcommand_from info cut merge synth help" -l json -d 'Print the result as JSON on stdout (numbers in base units: bytes, microseconds)'
complete -c dspark -n "__fish_dspark_using_subcommand trace; and not __fish_seen_subcommand_from info cut merge synth help" -s q -l quiet -d 'Print nothing but the result and errors; hides progress bars'
complete -c dspark -n "__fish_dspark_using_subcommand trace; and not __fish_seen_subcommand_from info cut merge synth help" -s v -l verbose -d 'Log more (-v debug, -vv trace); DSPARK_LOG sets exact filters'
complete -c dspark -n "__fish_dspark_using_subcommand trace; and not __fish_seen_subcommand_from info cut merge synth help" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c dspark -n "__fish_dspark_using_subcommand trace; and not __fish_seen_subcommand_from info cut merge synth help" -f -a "info" -d 'Count what a trace holds and name its anomalies'
complete -c dspark -n "__fish_dspark_using_subcommand trace; and not __fish_seen_subcommand_from info cut merge synth help" -f -a "cut" -d 'Keep a range of rounds, made self-contained by a leading resync'
complete -c dspark -n "__fish_dspark_using_subcommand trace; and not __fish_seen_subcommand_from info cut merge synth help" -f -a "merge" -d 'Join traces of one checkpoint, one after another'
complete -c dspark -n "__fish_dspark_using_subcommand trace; and not __fish_seen_subcommand_from info cut merge synth help" -f -a "synth" -d 'Write a synthetic trace for a checkpoint\'s geometry'
complete -c dspark -n "__fish_dspark_using_subcommand trace; and not __fish_seen_subcommand_from info cut merge synth help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c dspark -n "__fish_dspark_using_subcommand trace; and __fish_seen_subcommand_from info" -l color -d 'Colour the output; NO_COLOR is honoured' -r -f -a "auto\t'On a terminal, unless NO_COLOR is set'
always\t'Always'
never\t'Never'"
complete -c dspark -n "__fish_dspark_using_subcommand trace; and __fish_seen_subcommand_from info" -l json -d 'Print the result as JSON on stdout (numbers in base units: bytes, microseconds)'
complete -c dspark -n "__fish_dspark_using_subcommand trace; and __fish_seen_subcommand_from info" -s q -l quiet -d 'Print nothing but the result and errors; hides progress bars'
complete -c dspark -n "__fish_dspark_using_subcommand trace; and __fish_seen_subcommand_from info" -s v -l verbose -d 'Log more (-v debug, -vv trace); DSPARK_LOG sets exact filters'
complete -c dspark -n "__fish_dspark_using_subcommand trace; and __fish_seen_subcommand_from info" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c dspark -n "__fish_dspark_using_subcommand trace; and __fish_seen_subcommand_from cut" -s o -l output -d 'Trace file to write; it must not exist' -r -F
complete -c dspark -n "__fish_dspark_using_subcommand trace; and __fish_seen_subcommand_from cut" -l color -d 'Colour the output; NO_COLOR is honoured' -r -f -a "auto\t'On a terminal, unless NO_COLOR is set'
always\t'Always'
never\t'Never'"
complete -c dspark -n "__fish_dspark_using_subcommand trace; and __fish_seen_subcommand_from cut" -l json -d 'Print the result as JSON on stdout (numbers in base units: bytes, microseconds)'
complete -c dspark -n "__fish_dspark_using_subcommand trace; and __fish_seen_subcommand_from cut" -s q -l quiet -d 'Print nothing but the result and errors; hides progress bars'
complete -c dspark -n "__fish_dspark_using_subcommand trace; and __fish_seen_subcommand_from cut" -s v -l verbose -d 'Log more (-v debug, -vv trace); DSPARK_LOG sets exact filters'
complete -c dspark -n "__fish_dspark_using_subcommand trace; and __fish_seen_subcommand_from cut" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c dspark -n "__fish_dspark_using_subcommand trace; and __fish_seen_subcommand_from merge" -s o -l output -d 'Trace file to write; it must not exist' -r -F
complete -c dspark -n "__fish_dspark_using_subcommand trace; and __fish_seen_subcommand_from merge" -l color -d 'Colour the output; NO_COLOR is honoured' -r -f -a "auto\t'On a terminal, unless NO_COLOR is set'
always\t'Always'
never\t'Never'"
complete -c dspark -n "__fish_dspark_using_subcommand trace; and __fish_seen_subcommand_from merge" -l json -d 'Print the result as JSON on stdout (numbers in base units: bytes, microseconds)'
complete -c dspark -n "__fish_dspark_using_subcommand trace; and __fish_seen_subcommand_from merge" -s q -l quiet -d 'Print nothing but the result and errors; hides progress bars'
complete -c dspark -n "__fish_dspark_using_subcommand trace; and __fish_seen_subcommand_from merge" -s v -l verbose -d 'Log more (-v debug, -vv trace); DSPARK_LOG sets exact filters'
complete -c dspark -n "__fish_dspark_using_subcommand trace; and __fish_seen_subcommand_from merge" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c dspark -n "__fish_dspark_using_subcommand trace; and __fish_seen_subcommand_from synth" -l checkpoint -d 'Directory with config.json and the extracted drafter tensors' -r -F
complete -c dspark -n "__fish_dspark_using_subcommand trace; and __fish_seen_subcommand_from synth" -l receipt -d 'Copy receipt that the drafter identity is computed from [default: DIR/DSPARK_COPY_DONE]' -r -F
complete -c dspark -n "__fish_dspark_using_subcommand trace; and __fish_seen_subcommand_from synth" -l markov -d 'Markov cache [default: DIR/markov_top_tokens.json where there is one]' -r -F
complete -c dspark -n "__fish_dspark_using_subcommand trace; and __fish_seen_subcommand_from synth" -l synthetic -d 'Use random weights made in memory, of the live drafter\'s size (live: 9.1 GB) or the demo\'s (small): for measurements, drafts mean nothing' -r
complete -c dspark -n "__fish_dspark_using_subcommand trace; and __fish_seen_subcommand_from synth" -l rounds -d 'STEPs to write' -r
complete -c dspark -n "__fish_dspark_using_subcommand trace; and __fish_seen_subcommand_from synth" -l seed -d 'The same seed gives the same bytes' -r
complete -c dspark -n "__fish_dspark_using_subcommand trace; and __fish_seen_subcommand_from synth" -l requests -d 'Requests decoding at once, at most' -r
complete -c dspark -n "__fish_dspark_using_subcommand trace; and __fish_seen_subcommand_from synth" -l scenario -d 'What may happen, comma-separated [default: all but near-max-len]' -r
complete -c dspark -n "__fish_dspark_using_subcommand trace; and __fish_seen_subcommand_from synth" -s o -l output -d 'Trace file to write; it must not exist' -r -F
complete -c dspark -n "__fish_dspark_using_subcommand trace; and __fish_seen_subcommand_from synth" -l color -d 'Colour the output; NO_COLOR is honoured' -r -f -a "auto\t'On a terminal, unless NO_COLOR is set'
always\t'Always'
never\t'Never'"
complete -c dspark -n "__fish_dspark_using_subcommand trace; and __fish_seen_subcommand_from synth" -l demo -d 'Use the tiny synthetic checkpoint inside this program: no files, no GPU'
complete -c dspark -n "__fish_dspark_using_subcommand trace; and __fish_seen_subcommand_from synth" -l json -d 'Print the result as JSON on stdout (numbers in base units: bytes, microseconds)'
complete -c dspark -n "__fish_dspark_using_subcommand trace; and __fish_seen_subcommand_from synth" -s q -l quiet -d 'Print nothing but the result and errors; hides progress bars'
complete -c dspark -n "__fish_dspark_using_subcommand trace; and __fish_seen_subcommand_from synth" -s v -l verbose -d 'Log more (-v debug, -vv trace); DSPARK_LOG sets exact filters'
complete -c dspark -n "__fish_dspark_using_subcommand trace; and __fish_seen_subcommand_from synth" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c dspark -n "__fish_dspark_using_subcommand trace; and __fish_seen_subcommand_from help" -f -a "info" -d 'Count what a trace holds and name its anomalies'
complete -c dspark -n "__fish_dspark_using_subcommand trace; and __fish_seen_subcommand_from help" -f -a "cut" -d 'Keep a range of rounds, made self-contained by a leading resync'
complete -c dspark -n "__fish_dspark_using_subcommand trace; and __fish_seen_subcommand_from help" -f -a "merge" -d 'Join traces of one checkpoint, one after another'
complete -c dspark -n "__fish_dspark_using_subcommand trace; and __fish_seen_subcommand_from help" -f -a "synth" -d 'Write a synthetic trace for a checkpoint\'s geometry'
complete -c dspark -n "__fish_dspark_using_subcommand trace; and __fish_seen_subcommand_from help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c dspark -n "__fish_dspark_using_subcommand completions" -l color -d 'Colour the output; NO_COLOR is honoured' -r -f -a "auto\t'On a terminal, unless NO_COLOR is set'
always\t'Always'
never\t'Never'"
complete -c dspark -n "__fish_dspark_using_subcommand completions" -l json -d 'Print the result as JSON on stdout (numbers in base units: bytes, microseconds)'
complete -c dspark -n "__fish_dspark_using_subcommand completions" -s q -l quiet -d 'Print nothing but the result and errors; hides progress bars'
complete -c dspark -n "__fish_dspark_using_subcommand completions" -s v -l verbose -d 'Log more (-v debug, -vv trace); DSPARK_LOG sets exact filters'
complete -c dspark -n "__fish_dspark_using_subcommand completions" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c dspark -n "__fish_dspark_using_subcommand man" -l color -d 'Colour the output; NO_COLOR is honoured' -r -f -a "auto\t'On a terminal, unless NO_COLOR is set'
always\t'Always'
never\t'Never'"
complete -c dspark -n "__fish_dspark_using_subcommand man" -l json -d 'Print the result as JSON on stdout (numbers in base units: bytes, microseconds)'
complete -c dspark -n "__fish_dspark_using_subcommand man" -s q -l quiet -d 'Print nothing but the result and errors; hides progress bars'
complete -c dspark -n "__fish_dspark_using_subcommand man" -s v -l verbose -d 'Log more (-v debug, -vv trace); DSPARK_LOG sets exact filters'
complete -c dspark -n "__fish_dspark_using_subcommand man" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c dspark -n "__fish_dspark_using_subcommand help; and not __fish_seen_subcommand_from serve identity ping stats replay shadow-diff gpu-check top doctor trace completions man help" -f -a "serve" -d 'Run the drafter worker until SIGINT or SIGTERM'
complete -c dspark -n "__fish_dspark_using_subcommand help; and not __fish_seen_subcommand_from serve identity ping stats replay shadow-diff gpu-check top doctor trace completions man help" -f -a "identity" -d 'Print the drafter and Markov identities that HELLO exchanges'
complete -c dspark -n "__fish_dspark_using_subcommand help; and not __fish_seen_subcommand_from serve identity ping stats replay shadow-diff gpu-check top doctor trace completions man help" -f -a "ping" -d 'Measure the round trip to a worker, or wait until it is ready'
complete -c dspark -n "__fish_dspark_using_subcommand help; and not __fish_seen_subcommand_from serve identity ping stats replay shadow-diff gpu-check top doctor trace completions man help" -f -a "stats" -d 'Show the worker\'s counters and latency percentiles'
complete -c dspark -n "__fish_dspark_using_subcommand help; and not __fish_seen_subcommand_from serve identity ping stats replay shadow-diff gpu-check top doctor trace completions man help" -f -a "replay" -d 'Drive a worker with recorded taps, as Spark rank 0 would'
complete -c dspark -n "__fish_dspark_using_subcommand help; and not __fish_seen_subcommand_from serve identity ping stats replay shadow-diff gpu-check top doctor trace completions man help" -f -a "shadow-diff" -d 'Compare two sets of drafts round by round'
complete -c dspark -n "__fish_dspark_using_subcommand help; and not __fish_seen_subcommand_from serve identity ping stats replay shadow-diff gpu-check top doctor trace completions man help" -f -a "gpu-check" -d 'Check a GPU and measure drafting on it'
complete -c dspark -n "__fish_dspark_using_subcommand help; and not __fish_seen_subcommand_from serve identity ping stats replay shadow-diff gpu-check top doctor trace completions man help" -f -a "top" -d 'Watch workers live in the terminal'
complete -c dspark -n "__fish_dspark_using_subcommand help; and not __fish_seen_subcommand_from serve identity ping stats replay shadow-diff gpu-check top doctor trace completions man help" -f -a "doctor" -d 'Check what this machine can run and say how to fix what is missing'
complete -c dspark -n "__fish_dspark_using_subcommand help; and not __fish_seen_subcommand_from serve identity ping stats replay shadow-diff gpu-check top doctor trace completions man help" -f -a "trace" -d 'Inspect and make trace files'
complete -c dspark -n "__fish_dspark_using_subcommand help; and not __fish_seen_subcommand_from serve identity ping stats replay shadow-diff gpu-check top doctor trace completions man help" -f -a "completions" -d 'Print a shell completion script'
complete -c dspark -n "__fish_dspark_using_subcommand help; and not __fish_seen_subcommand_from serve identity ping stats replay shadow-diff gpu-check top doctor trace completions man help" -f -a "man" -d 'Write the manual pages, one per command'
complete -c dspark -n "__fish_dspark_using_subcommand help; and not __fish_seen_subcommand_from serve identity ping stats replay shadow-diff gpu-check top doctor trace completions man help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c dspark -n "__fish_dspark_using_subcommand help; and __fish_seen_subcommand_from trace" -f -a "info" -d 'Count what a trace holds and name its anomalies'
complete -c dspark -n "__fish_dspark_using_subcommand help; and __fish_seen_subcommand_from trace" -f -a "cut" -d 'Keep a range of rounds, made self-contained by a leading resync'
complete -c dspark -n "__fish_dspark_using_subcommand help; and __fish_seen_subcommand_from trace" -f -a "merge" -d 'Join traces of one checkpoint, one after another'
complete -c dspark -n "__fish_dspark_using_subcommand help; and __fish_seen_subcommand_from trace" -f -a "synth" -d 'Write a synthetic trace for a checkpoint\'s geometry'
