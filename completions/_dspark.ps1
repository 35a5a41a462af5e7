
using namespace System.Management.Automation
using namespace System.Management.Automation.Language

Register-ArgumentCompleter -Native -CommandName 'dspark' -ScriptBlock {
    param($wordToComplete, $commandAst, $cursorPosition)

    $commandElements = $commandAst.CommandElements
    $command = @(
        'dspark'
        for ($i = 1; $i -lt $commandElements.Count; $i++) {
            $element = $commandElements[$i]
            if ($element -isnot [StringConstantExpressionAst] -or
                $element.StringConstantType -ne [StringConstantType]::BareWord -or
                $element.Value.StartsWith('-') -or
                $element.Value -eq $wordToComplete) {
                break
        }
        $element.Value
    }) -join ';'

    $completions = @(switch ($command) {
        'dspark' {
            [CompletionResult]::new('--color', '--color', [CompletionResultType]::ParameterName, 'Colour the output; NO_COLOR is honoured')
            [CompletionResult]::new('--json', '--json', [CompletionResultType]::ParameterName, 'Print the result as JSON on stdout (numbers in base units: bytes, microseconds)')
            [CompletionResult]::new('-q', '-q', [CompletionResultType]::ParameterName, 'Print nothing but the result and errors; hides progress bars')
            [CompletionResult]::new('--quiet', '--quiet', [CompletionResultType]::ParameterName, 'Print nothing but the result and errors; hides progress bars')
            [CompletionResult]::new('-v', '-v', [CompletionResultType]::ParameterName, 'Log more (-v debug, -vv trace); DSPARK_LOG sets exact filters')
            [CompletionResult]::new('--verbose', '--verbose', [CompletionResultType]::ParameterName, 'Log more (-v debug, -vv trace); DSPARK_LOG sets exact filters')
            [CompletionResult]::new('-h', '-h', [CompletionResultType]::ParameterName, 'Print help (see more with ''--help'')')
            [CompletionResult]::new('--help', '--help', [CompletionResultType]::ParameterName, 'Print help (see more with ''--help'')')
            [CompletionResult]::new('-V', '-V ', [CompletionResultType]::ParameterName, 'Print version')
            [CompletionResult]::new('--version', '--version', [CompletionResultType]::ParameterName, 'Print version')
            [CompletionResult]::new('serve', 'serve', [CompletionResultType]::ParameterValue, 'Run the drafter worker until SIGINT or SIGTERM')
            [CompletionResult]::new('identity', 'identity', [CompletionResultType]::ParameterValue, 'Print the drafter and Markov identities that HELLO exchanges')
            [CompletionResult]::new('ping', 'ping', [CompletionResultType]::ParameterValue, 'Measure the round trip to a worker, or wait until it is ready')
            [CompletionResult]::new('stats', 'stats', [CompletionResultType]::ParameterValue, 'Show the worker''s counters and latency percentiles')
            [CompletionResult]::new('replay', 'replay', [CompletionResultType]::ParameterValue, 'Drive a worker with recorded taps, as Spark rank 0 would')
            [CompletionResult]::new('shadow-diff', 'shadow-diff', [CompletionResultType]::ParameterValue, 'Compare two sets of drafts round by round')
            [CompletionResult]::new('gpu-check', 'gpu-check', [CompletionResultType]::ParameterValue, 'Check a GPU and measure drafting on it')
            [CompletionResult]::new('top', 'top', [CompletionResultType]::ParameterValue, 'Watch workers live in the terminal')
            [CompletionResult]::new('doctor', 'doctor', [CompletionResultType]::ParameterValue, 'Check what this machine can run and say how to fix what is missing')
            [CompletionResult]::new('trace', 'trace', [CompletionResultType]::ParameterValue, 'Inspect and make trace files')
            [CompletionResult]::new('completions', 'completions', [CompletionResultType]::ParameterValue, 'Print a shell completion script')
            [CompletionResult]::new('man', 'man', [CompletionResultType]::ParameterValue, 'Write the manual pages, one per command')
            [CompletionResult]::new('help', 'help', [CompletionResultType]::ParameterValue, 'Print this message or the help of the given subcommand(s)')
            break
        }
        'dspark;serve' {
            [CompletionResult]::new('--checkpoint', '--checkpoint', [CompletionResultType]::ParameterName, 'Directory with config.json and the extracted drafter tensors')
            [CompletionResult]::new('--receipt', '--receipt', [CompletionResultType]::ParameterName, 'Copy receipt that the drafter identity is computed from [default: DIR/DSPARK_COPY_DONE]')
            [CompletionResult]::new('--markov', '--markov', [CompletionResultType]::ParameterName, 'Markov cache [default: DIR/markov_top_tokens.json where there is one]')
            [CompletionResult]::new('--synthetic', '--synthetic', [CompletionResultType]::ParameterName, 'Use random weights made in memory, of the live drafter''s size (live: 9.1 GB) or the demo''s (small): for measurements, drafts mean nothing')
            [CompletionResult]::new('--backend', '--backend', [CompletionResultType]::ParameterName, 'Where drafting runs; auto takes the GPU when one is usable')
            [CompletionResult]::new('--device', '--device', [CompletionResultType]::ParameterName, 'Index of the GPU')
            [CompletionResult]::new('--precision', '--precision', [CompletionResultType]::ParameterName, 'Rounding of activations: bf16 as the engine''s, or f32 with nothing rounded after load (CPU only)')
            [CompletionResult]::new('--logits', '--logits', [CompletionResultType]::ParameterName, 'Rounding of logits before the argmax: bf16 as the engine''s, or f32')
            [CompletionResult]::new('--max-slots', '--max-slots', [CompletionResultType]::ParameterName, 'Request slots kept resident (the engine''s max_num_seqs)')
            [CompletionResult]::new('--listen', '--listen', [CompletionResultType]::ParameterName, 'Drafting listener; repeat for more. One client each, the newest connection wins')
            [CompletionResult]::new('--control', '--control', [CompletionResultType]::ParameterName, 'Listener for PING and STATS that never disturbs the drafting session; ''off'' disables it')
            [CompletionResult]::new('--metrics', '--metrics', [CompletionResultType]::ParameterName, 'Serve /metrics, /healthz and /readyz over HTTP on this address; ''off'' does not')
            [CompletionResult]::new('--allow-peer', '--allow-peer', [CompletionResultType]::ParameterName, 'Close drafting connections from elsewhere at accept; repeat for more [default: all may connect]')
            [CompletionResult]::new('--bind-wait', '--bind-wait', [CompletionResultType]::ParameterName, 'Wait this long for a listener''s address to appear on an interface')
            [CompletionResult]::new('--name', '--name', [CompletionResultType]::ParameterName, 'Worker name sent in HELLO replies (at most 40 ASCII bytes)')
            [CompletionResult]::new('--record', '--record', [CompletionResultType]::ParameterName, 'Append every request and reply to a new trace file for ''dspark replay''; a folder gets one named after the time of each start, a file that exists is refused')
            [CompletionResult]::new('--record-limit', '--record-limit', [CompletionResultType]::ParameterName, 'Stop recording after this many bytes')
            [CompletionResult]::new('--stall-limit', '--stall-limit', [CompletionResultType]::ParameterName, 'Exit with 70 when drafting has been stuck for this long, for a supervisor to restart')
            [CompletionResult]::new('--keep-warm', '--keep-warm', [CompletionResultType]::ParameterName, 'Use the GPU whenever it was idle for TIME, so that its clocks stay up; a STEP that comes meanwhile waits for one pass over no rows. ''off'' lets it rest')
            [CompletionResult]::new('--color', '--color', [CompletionResultType]::ParameterName, 'Colour the output; NO_COLOR is honoured')
            [CompletionResult]::new('--demo', '--demo', [CompletionResultType]::ParameterName, 'Use the tiny synthetic checkpoint inside this program: no files, no GPU')
            [CompletionResult]::new('--check', '--check', [CompletionResultType]::ParameterName, 'Load and verify everything, print modules, memory and the origin of every setting, and exit')
            [CompletionResult]::new('--json', '--json', [CompletionResultType]::ParameterName, 'Print the result as JSON on stdout (numbers in base units: bytes, microseconds)')
            [CompletionResult]::new('-q', '-q', [CompletionResultType]::ParameterName, 'Print nothing but the result and errors; hides progress bars')
            [CompletionResult]::new('--quiet', '--quiet', [CompletionResultType]::ParameterName, 'Print nothing but the result and errors; hides progress bars')
            [CompletionResult]::new('-v', '-v', [CompletionResultType]::ParameterName, 'Log more (-v debug, -vv trace); DSPARK_LOG sets exact filters')
            [CompletionResult]::new('--verbose', '--verbose', [CompletionResultType]::ParameterName, 'Log more (-v debug, -vv trace); DSPARK_LOG sets exact filters')
            [CompletionResult]::new('-h', '-h', [CompletionResultType]::ParameterName, 'Print help (see more with ''--help'')')
            [CompletionResult]::new('--help', '--help', [CompletionResultType]::ParameterName, 'Print help (see more with ''--help'')')
            break
        }
        'dspark;identity' {
            [CompletionResult]::new('--receipt', '--receipt', [CompletionResultType]::ParameterName, 'Copy receipt (DSPARK_COPY_DONE); ''-'' reads stdin')
            [CompletionResult]::new('--markov', '--markov', [CompletionResultType]::ParameterName, 'Markov cache to hash; 64 zeros are printed when none is given')
            [CompletionResult]::new('--verify', '--verify', [CompletionResultType]::ParameterName, 'Also hash the extracted files in DIR and compare them with the receipt')
            [CompletionResult]::new('--only', '--only', [CompletionResultType]::ParameterName, 'Print one bare digest and nothing else')
            [CompletionResult]::new('--expect-drafter', '--expect-drafter', [CompletionResultType]::ParameterName, 'Exit with 1 unless the drafter identity is HEX')
            [CompletionResult]::new('--expect-markov', '--expect-markov', [CompletionResultType]::ParameterName, 'Exit with 1 unless the Markov identity is HEX')
            [CompletionResult]::new('--color', '--color', [CompletionResultType]::ParameterName, 'Colour the output; NO_COLOR is honoured')
            [CompletionResult]::new('--json', '--json', [CompletionResultType]::ParameterName, 'Print the result as JSON on stdout (numbers in base units: bytes, microseconds)')
            [CompletionResult]::new('-q', '-q', [CompletionResultType]::ParameterName, 'Print nothing but the result and errors; hides progress bars')
            [CompletionResult]::new('--quiet', '--quiet', [CompletionResultType]::ParameterName, 'Print nothing but the result and errors; hides progress bars')
            [CompletionResult]::new('-v', '-v', [CompletionResultType]::ParameterName, 'Log more (-v debug, -vv trace); DSPARK_LOG sets exact filters')
            [CompletionResult]::new('--verbose', '--verbose', [CompletionResultType]::ParameterName, 'Log more (-v debug, -vv trace); DSPARK_LOG sets exact filters')
            [CompletionResult]::new('-h', '-h', [CompletionResultType]::ParameterName, 'Print help (see more with ''--help'')')
            [CompletionResult]::new('--help', '--help', [CompletionResultType]::ParameterName, 'Print help (see more with ''--help'')')
            break
        }
        'dspark;ping' {
            [CompletionResult]::new('--timeout', '--timeout', [CompletionResultType]::ParameterName, 'Give up after this long (50ms, 2s; a bare number is milliseconds)')
            [CompletionResult]::new('-c', '-c', [CompletionResultType]::ParameterName, 'Number of pings')
            [CompletionResult]::new('--count', '--count', [CompletionResultType]::ParameterName, 'Number of pings')
            [CompletionResult]::new('-i', '-i', [CompletionResultType]::ParameterName, 'Pause between pings')
            [CompletionResult]::new('--interval', '--interval', [CompletionResultType]::ParameterName, 'Pause between pings')
            [CompletionResult]::new('--wait', '--wait', [CompletionResultType]::ParameterName, 'Retry until the first reply, for at most this long, then stop')
            [CompletionResult]::new('--warn', '--warn', [CompletionResultType]::ParameterName, 'Remark when the p99 is above TIME; the exit code stays 0')
            [CompletionResult]::new('--crit', '--crit', [CompletionResultType]::ParameterName, 'Exit with 1 when the p99 is above TIME')
            [CompletionResult]::new('--stall', '--stall', [CompletionResultType]::ParameterName, 'How long a stall is one, for --check')
            [CompletionResult]::new('--color', '--color', [CompletionResultType]::ParameterName, 'Colour the output; NO_COLOR is honoured')
            [CompletionResult]::new('--takeover', '--takeover', [CompletionResultType]::ParameterName, 'Connect even to a drafting listener, which drops the live client')
            [CompletionResult]::new('--histogram', '--histogram', [CompletionResultType]::ParameterName, 'Print how the round trips are distributed')
            [CompletionResult]::new('--check', '--check', [CompletionResultType]::ParameterName, 'Exit with 1 when the worker answers but its drafting has stalled')
            [CompletionResult]::new('--busy', '--busy', [CompletionResultType]::ParameterName, 'For --check: the engine always has requests, so that a session without STEPs is a stall')
            [CompletionResult]::new('--json', '--json', [CompletionResultType]::ParameterName, 'Print the result as JSON on stdout (numbers in base units: bytes, microseconds)')
            [CompletionResult]::new('-q', '-q', [CompletionResultType]::ParameterName, 'Print nothing but the result and errors; hides progress bars')
            [CompletionResult]::new('--quiet', '--quiet', [CompletionResultType]::ParameterName, 'Print nothing but the result and errors; hides progress bars')
            [CompletionResult]::new('-v', '-v', [CompletionResultType]::ParameterName, 'Log more (-v debug, -vv trace); DSPARK_LOG sets exact filters')
            [CompletionResult]::new('--verbose', '--verbose', [CompletionResultType]::ParameterName, 'Log more (-v debug, -vv trace); DSPARK_LOG sets exact filters')
            [CompletionResult]::new('-h', '-h', [CompletionResultType]::ParameterName, 'Print help (see more with ''--help'')')
            [CompletionResult]::new('--help', '--help', [CompletionResultType]::ParameterName, 'Print help (see more with ''--help'')')
            break
        }
        'dspark;stats' {
            [CompletionResult]::new('--timeout', '--timeout', [CompletionResultType]::ParameterName, 'Give up after this long (50ms, 2s; a bare number is milliseconds)')
            [CompletionResult]::new('--watch', '--watch', [CompletionResultType]::ParameterName, 'Print again every TIME, with what changed; --json then prints one object per line')
            [CompletionResult]::new('--textfile', '--textfile', [CompletionResultType]::ParameterName, 'Write OpenMetrics text to a file, for a textfile collector, and print nothing')
            [CompletionResult]::new('--color', '--color', [CompletionResultType]::ParameterName, 'Colour the output; NO_COLOR is honoured')
            [CompletionResult]::new('--takeover', '--takeover', [CompletionResultType]::ParameterName, 'Connect even to a drafting listener, which drops the live client')
            [CompletionResult]::new('--openmetrics', '--openmetrics', [CompletionResultType]::ParameterName, 'Print OpenMetrics text, the same as ''serve --metrics'' answers')
            [CompletionResult]::new('--json', '--json', [CompletionResultType]::ParameterName, 'Print the result as JSON on stdout (numbers in base units: bytes, microseconds)')
            [CompletionResult]::new('-q', '-q', [CompletionResultType]::ParameterName, 'Print nothing but the result and errors; hides progress bars')
            [CompletionResult]::new('--quiet', '--quiet', [CompletionResultType]::ParameterName, 'Print nothing but the result and errors; hides progress bars')
            [CompletionResult]::new('-v', '-v', [CompletionResultType]::ParameterName, 'Log more (-v debug, -vv trace); DSPARK_LOG sets exact filters')
            [CompletionResult]::new('--verbose', '--verbose', [CompletionResultType]::ParameterName, 'Log more (-v debug, -vv trace); DSPARK_LOG sets exact filters')
            [CompletionResult]::new('-h', '-h', [CompletionResultType]::ParameterName, 'Print help (see more with ''--help'')')
            [CompletionResult]::new('--help', '--help', [CompletionResultType]::ParameterName, 'Print help (see more with ''--help'')')
            break
        }
        'dspark;replay' {
            [CompletionResult]::new('-e', '-e', [CompletionResultType]::ParameterName, 'Drafting endpoint (tcp://HOST:PORT?bind=ADDR) [default: tcp://127.0.0.1:18620]')
            [CompletionResult]::new('--endpoint', '--endpoint', [CompletionResultType]::ParameterName, 'Drafting endpoint (tcp://HOST:PORT?bind=ADDR) [default: tcp://127.0.0.1:18620]')
            [CompletionResult]::new('--pace', '--pace', [CompletionResultType]::ParameterName, 'Send rounds as recorded, as fast as replies come, or at a fixed rate per second')
            [CompletionResult]::new('--rounds', '--rounds', [CompletionResultType]::ParameterName, 'Stop after N rounds')
            [CompletionResult]::new('--warmup', '--warmup', [CompletionResultType]::ParameterName, 'Leave the first N rounds out of the latencies')
            [CompletionResult]::new('-o', '-o', [CompletionResultType]::ParameterName, 'Write requests, replies and local drafts to a new trace')
            [CompletionResult]::new('--output', '--output', [CompletionResultType]::ParameterName, 'Write requests, replies and local drafts to a new trace')
            [CompletionResult]::new('--round-log', '--round-log', [CompletionResultType]::ParameterName, 'Write one line per round to FILE, which ends in .csv or .jsonl')
            [CompletionResult]::new('--policy', '--policy', [CompletionResultType]::ParameterName, 'What a failed round does')
            [CompletionResult]::new('--on-fail', '--on-fail', [CompletionResultType]::ParameterName, 'Policy capacity: go on with zero drafts, or end the replay')
            [CompletionResult]::new('--shadow-use', '--shadow-use', [CompletionResultType]::ParameterName, 'Policy shadow: whose drafts the engine uses')
            [CompletionResult]::new('--local', '--local', [CompletionResultType]::ParameterName, 'Local drafter of policies resilience and shadow: a checkpoint directory, or the drafting endpoint of a second worker [default: the demo''s checkpoint]')
            [CompletionResult]::new('--timeout', '--timeout', [CompletionResultType]::ParameterName, 'Deadline of one round')
            [CompletionResult]::new('--trip', '--trip', [CompletionResultType]::ParameterName, 'Failed attempts in a row that open the circuit breaker; 0 turns it off')
            [CompletionResult]::new('--cooldown', '--cooldown', [CompletionResultType]::ParameterName, 'Rounds the breaker stays open')
            [CompletionResult]::new('--backoff', '--backoff', [CompletionResultType]::ParameterName, 'First pause before a reconnect, in engine time; it doubles up to 30 s. 0 reconnects at once')
            [CompletionResult]::new('--fault', '--fault', [CompletionResultType]::ParameterName, 'Inject a fault with a probability per round: close=P, drop=P, delay=TIME@P, garbage=P, truncate=P, stale=P, duplicate=P, half-close=P')
            [CompletionResult]::new('--seed', '--seed', [CompletionResultType]::ParameterName, 'Seed of the fault schedule; the same seed repeats the same faults')
            [CompletionResult]::new('--resync-at', '--resync-at', [CompletionResultType]::ParameterName, 'Send every window again at these rounds (1 is the first)')
            [CompletionResult]::new('--reconnect-at', '--reconnect-at', [CompletionResultType]::ParameterName, 'Drop the connection before these rounds')
            [CompletionResult]::new('--worker-restart', '--worker-restart', [CompletionResultType]::ParameterName, 'Shell command that restarts the worker, run before the rounds of --restart-at')
            [CompletionResult]::new('--restart-at', '--restart-at', [CompletionResultType]::ParameterName, 'Rounds before which --worker-restart is run')
            [CompletionResult]::new('--expect', '--expect', [CompletionResultType]::ParameterName, 'Compare the drafts with the replies in this trace instead of those in TRACE')
            [CompletionResult]::new('--min-agreement', '--min-agreement', [CompletionResultType]::ParameterName, 'Exit with 1 if a smaller share of comparable positions agrees')
            [CompletionResult]::new('--near-tie', '--near-tie', [CompletionResultType]::ParameterName, 'Count a mismatch with a margin up to LOGITS as a near-tie, not as a disagreement')
            [CompletionResult]::new('--color', '--color', [CompletionResultType]::ParameterName, 'Colour the output; NO_COLOR is honoured')
            [CompletionResult]::new('--demo', '--demo', [CompletionResultType]::ParameterName, 'Replay a built-in synthetic trace that matches ''dspark serve --demo''; without --endpoint, against a demo worker started for it')
            [CompletionResult]::new('--async', '--async', [CompletionResultType]::ParameterName, 'Go on while a request is in flight, as the engine''s asynchronous proxy does: a late reply makes the next round late instead of moving the schedule')
            [CompletionResult]::new('--margins', '--margins', [CompletionResultType]::ParameterName, 'Ask for draft margins (step flag WANT_MARGIN)')
            [CompletionResult]::new('--allow-failures', '--allow-failures', [CompletionResultType]::ParameterName, 'Exit with 0 even if rounds failed')
            [CompletionResult]::new('--verify', '--verify', [CompletionResultType]::ParameterName, 'At the end draft every live slot twice, over the worker''s own windows and over windows sent anew, and compare: on by itself when faults are injected')
            [CompletionResult]::new('--json', '--json', [CompletionResultType]::ParameterName, 'Print the result as JSON on stdout (numbers in base units: bytes, microseconds)')
            [CompletionResult]::new('-q', '-q', [CompletionResultType]::ParameterName, 'Print nothing but the result and errors; hides progress bars')
            [CompletionResult]::new('--quiet', '--quiet', [CompletionResultType]::ParameterName, 'Print nothing but the result and errors; hides progress bars')
            [CompletionResult]::new('-v', '-v', [CompletionResultType]::ParameterName, 'Log more (-v debug, -vv trace); DSPARK_LOG sets exact filters')
            [CompletionResult]::new('--verbose', '--verbose', [CompletionResultType]::ParameterName, 'Log more (-v debug, -vv trace); DSPARK_LOG sets exact filters')
            [CompletionResult]::new('-h', '-h', [CompletionResultType]::ParameterName, 'Print help (see more with ''--help'')')
            [CompletionResult]::new('--help', '--help', [CompletionResultType]::ParameterName, 'Print help (see more with ''--help'')')
            break
        }
        'dspark;shadow-diff' {
            [CompletionResult]::new('--trace', '--trace', [CompletionResultType]::ParameterName, 'Rounds that drive live sides, when LEFT is no trace')
            [CompletionResult]::new('--min-agreement', '--min-agreement', [CompletionResultType]::ParameterName, 'Exit with 1 if fewer comparable positions agree')
            [CompletionResult]::new('--near-tie', '--near-tie', [CompletionResultType]::ParameterName, 'Count a mismatch with a margin up to LOGITS as a near-tie, not as a disagreement')
            [CompletionResult]::new('--show', '--show', [CompletionResultType]::ParameterName, 'List the first N mismatching blocks, largest margin first')
            [CompletionResult]::new('--plot', '--plot', [CompletionResultType]::ParameterName, 'Draw agreement by position and mismatches by margin into an SVG file')
            [CompletionResult]::new('--timeout', '--timeout', [CompletionResultType]::ParameterName, 'Deadline of one round on a live side')
            [CompletionResult]::new('--color', '--color', [CompletionResultType]::ParameterName, 'Colour the output; NO_COLOR is honoured')
            [CompletionResult]::new('--json', '--json', [CompletionResultType]::ParameterName, 'Print the result as JSON on stdout (numbers in base units: bytes, microseconds)')
            [CompletionResult]::new('-q', '-q', [CompletionResultType]::ParameterName, 'Print nothing but the result and errors; hides progress bars')
            [CompletionResult]::new('--quiet', '--quiet', [CompletionResultType]::ParameterName, 'Print nothing but the result and errors; hides progress bars')
            [CompletionResult]::new('-v', '-v', [CompletionResultType]::ParameterName, 'Log more (-v debug, -vv trace); DSPARK_LOG sets exact filters')
            [CompletionResult]::new('--verbose', '--verbose', [CompletionResultType]::ParameterName, 'Log more (-v debug, -vv trace); DSPARK_LOG sets exact filters')
            [CompletionResult]::new('-h', '-h', [CompletionResultType]::ParameterName, 'Print help (see more with ''--help'')')
            [CompletionResult]::new('--help', '--help', [CompletionResultType]::ParameterName, 'Print help (see more with ''--help'')')
            break
        }
        'dspark;gpu-check' {
            [CompletionResult]::new('--only', '--only', [CompletionResultType]::ParameterName, 'Only cases whose name contains NAME')
            [CompletionResult]::new('--out', '--out', [CompletionResultType]::ParameterName, 'Also write the document that --json prints to DIR/gpu-check.json')
            [CompletionResult]::new('--device', '--device', [CompletionResultType]::ParameterName, 'Index of the GPU')
            [CompletionResult]::new('--limit', '--limit', [CompletionResultType]::ParameterName, 'End a stage after this long [default: 1 to 15 minutes, by stage]')
            [CompletionResult]::new('--color', '--color', [CompletionResultType]::ParameterName, 'Colour the output; NO_COLOR is honoured')
            [CompletionResult]::new('--in-process', '--in-process', [CompletionResultType]::ParameterName, 'Run the stages in this process, without limits; print one JSON line each')
            [CompletionResult]::new('--json', '--json', [CompletionResultType]::ParameterName, 'Print the result as JSON on stdout (numbers in base units: bytes, microseconds)')
            [CompletionResult]::new('-q', '-q', [CompletionResultType]::ParameterName, 'Print nothing but the result and errors; hides progress bars')
            [CompletionResult]::new('--quiet', '--quiet', [CompletionResultType]::ParameterName, 'Print nothing but the result and errors; hides progress bars')
            [CompletionResult]::new('-v', '-v', [CompletionResultType]::ParameterName, 'Log more (-v debug, -vv trace); DSPARK_LOG sets exact filters')
            [CompletionResult]::new('--verbose', '--verbose', [CompletionResultType]::ParameterName, 'Log more (-v debug, -vv trace); DSPARK_LOG sets exact filters')
            [CompletionResult]::new('-h', '-h', [CompletionResultType]::ParameterName, 'Print help (see more with ''--help'')')
            [CompletionResult]::new('--help', '--help', [CompletionResultType]::ParameterName, 'Print help (see more with ''--help'')')
            break
        }
        'dspark;top' {
            [CompletionResult]::new('--timeout', '--timeout', [CompletionResultType]::ParameterName, 'Give up after this long (50ms, 2s; a bare number is milliseconds)')
            [CompletionResult]::new('-i', '-i', [CompletionResultType]::ParameterName, 'Refresh interval, 50ms or more')
            [CompletionResult]::new('--interval', '--interval', [CompletionResultType]::ParameterName, 'Refresh interval, 50ms or more')
            [CompletionResult]::new('--color', '--color', [CompletionResultType]::ParameterName, 'Colour the output; NO_COLOR is honoured')
            [CompletionResult]::new('--takeover', '--takeover', [CompletionResultType]::ParameterName, 'Connect even to a drafting listener, which drops the live client')
            [CompletionResult]::new('--once', '--once', [CompletionResultType]::ParameterName, 'Print one picture as text and exit; the default when stdout is not a terminal')
            [CompletionResult]::new('--ascii', '--ascii', [CompletionResultType]::ParameterName, 'Draw with ASCII characters only')
            [CompletionResult]::new('--json', '--json', [CompletionResultType]::ParameterName, 'Print the result as JSON on stdout (numbers in base units: bytes, microseconds)')
            [CompletionResult]::new('-q', '-q', [CompletionResultType]::ParameterName, 'Print nothing but the result and errors; hides progress bars')
            [CompletionResult]::new('--quiet', '--quiet', [CompletionResultType]::ParameterName, 'Print nothing but the result and errors; hides progress bars')
            [CompletionResult]::new('-v', '-v', [CompletionResultType]::ParameterName, 'Log more (-v debug, -vv trace); DSPARK_LOG sets exact filters')
            [CompletionResult]::new('--verbose', '--verbose', [CompletionResultType]::ParameterName, 'Log more (-v debug, -vv trace); DSPARK_LOG sets exact filters')
            [CompletionResult]::new('-h', '-h', [CompletionResultType]::ParameterName, 'Print help (see more with ''--help'')')
            [CompletionResult]::new('--help', '--help', [CompletionResultType]::ParameterName, 'Print help (see more with ''--help'')')
            break
        }
        'dspark;doctor' {
            [CompletionResult]::new('--checkpoint', '--checkpoint', [CompletionResultType]::ParameterName, 'Also look at the files of a checkpoint')
            [CompletionResult]::new('--receipt', '--receipt', [CompletionResultType]::ParameterName, 'Its copy receipt [default: DIR/DSPARK_COPY_DONE]')
            [CompletionResult]::new('--markov', '--markov', [CompletionResultType]::ParameterName, 'Its Markov cache [default: DIR/markov_top_tokens.json where there is one]')
            [CompletionResult]::new('--color', '--color', [CompletionResultType]::ParameterName, 'Colour the output; NO_COLOR is honoured')
            [CompletionResult]::new('--verify', '--verify', [CompletionResultType]::ParameterName, 'Hash its files, as ''serve'' does at its start')
            [CompletionResult]::new('--json', '--json', [CompletionResultType]::ParameterName, 'Print the result as JSON on stdout (numbers in base units: bytes, microseconds)')
            [CompletionResult]::new('-q', '-q', [CompletionResultType]::ParameterName, 'Print nothing but the result and errors; hides progress bars')
            [CompletionResult]::new('--quiet', '--quiet', [CompletionResultType]::ParameterName, 'Print nothing but the result and errors; hides progress bars')
            [CompletionResult]::new('-v', '-v', [CompletionResultType]::ParameterName, 'Log more (-v debug, -vv trace); DSPARK_LOG sets exact filters')
            [CompletionResult]::new('--verbose', '--verbose', [CompletionResultType]::ParameterName, 'Log more (-v debug, -vv trace); DSPARK_LOG sets exact filters')
            [CompletionResult]::new('-h', '-h', [CompletionResultType]::ParameterName, 'Print help (see more with ''--help'')')
            [CompletionResult]::new('--help', '--help', [CompletionResultType]::ParameterName, 'Print help (see more with ''--help'')')
            break
        }
        'dspark;trace' {
            [CompletionResult]::new('--color', '--color', [CompletionResultType]::ParameterName, 'Colour the output; NO_COLOR is honoured')
            [CompletionResult]::new('--json', '--json', [CompletionResultType]::ParameterName, 'Print the result as JSON on stdout (numbers in base units: bytes, microseconds)')
            [CompletionResult]::new('-q', '-q', [CompletionResultType]::ParameterName, 'Print nothing but the result and errors; hides progress bars')
            [CompletionResult]::new('--quiet', '--quiet', [CompletionResultType]::ParameterName, 'Print nothing but the result and errors; hides progress bars')
            [CompletionResult]::new('-v', '-v', [CompletionResultType]::ParameterName, 'Log more (-v debug, -vv trace); DSPARK_LOG sets exact filters')
            [CompletionResult]::new('--verbose', '--verbose', [CompletionResultType]::ParameterName, 'Log more (-v debug, -vv trace); DSPARK_LOG sets exact filters')
            [CompletionResult]::new('-h', '-h', [CompletionResultType]::ParameterName, 'Print help (see more with ''--help'')')
            [CompletionResult]::new('--help', '--help', [CompletionResultType]::ParameterName, 'Print help (see more with ''--help'')')
            [CompletionResult]::new('info', 'info', [CompletionResultType]::ParameterValue, 'Count what a trace holds and name its anomalies')
            [CompletionResult]::new('cut', 'cut', [CompletionResultType]::ParameterValue, 'Keep a range of rounds, made self-contained by a leading resync')
            [CompletionResult]::new('merge', 'merge', [CompletionResultType]::ParameterValue, 'Join traces of one checkpoint, one after another')
            [CompletionResult]::new('synth', 'synth', [CompletionResultType]::ParameterValue, 'Write a synthetic trace for a checkpoint''s geometry')
            [CompletionResult]::new('help', 'help', [CompletionResultType]::ParameterValue, 'Print this message or the help of the given subcommand(s)')
            break
        }
        'dspark;trace;info' {
            [CompletionResult]::new('--color', '--color', [CompletionResultType]::ParameterName, 'Colour the output; NO_COLOR is honoured')
            [CompletionResult]::new('--json', '--json', [CompletionResultType]::ParameterName, 'Print the result as JSON on stdout (numbers in base units: bytes, microseconds)')
            [CompletionResult]::new('-q', '-q', [CompletionResultType]::ParameterName, 'Print nothing but the result and errors; hides progress bars')
            [CompletionResult]::new('--quiet', '--quiet', [CompletionResultType]::ParameterName, 'Print nothing but the result and errors; hides progress bars')
            [CompletionResult]::new('-v', '-v', [CompletionResultType]::ParameterName, 'Log more (-v debug, -vv trace); DSPARK_LOG sets exact filters')
            [CompletionResult]::new('--verbose', '--verbose', [CompletionResultType]::ParameterName, 'Log more (-v debug, -vv trace); DSPARK_LOG sets exact filters')
            [CompletionResult]::new('-h', '-h', [CompletionResultType]::ParameterName, 'Print help (see more with ''--help'')')
            [CompletionResult]::new('--help', '--help', [CompletionResultType]::ParameterName, 'Print help (see more with ''--help'')')
            break
        }
        'dspark;trace;cut' {
            [CompletionResult]::new('-o', '-o', [CompletionResultType]::ParameterName, 'Trace file to write; it must not exist')
            [CompletionResult]::new('--output', '--output', [CompletionResultType]::ParameterName, 'Trace file to write; it must not exist')
            [CompletionResult]::new('--color', '--color', [CompletionResultType]::ParameterName, 'Colour the output; NO_COLOR is honoured')
            [CompletionResult]::new('--json', '--json', [CompletionResultType]::ParameterName, 'Print the result as JSON on stdout (numbers in base units: bytes, microseconds)')
            [CompletionResult]::new('-q', '-q', [CompletionResultType]::ParameterName, 'Print nothing but the result and errors; hides progress bars')
            [CompletionResult]::new('--quiet', '--quiet', [CompletionResultType]::ParameterName, 'Print nothing but the result and errors; hides progress bars')
            [CompletionResult]::new('-v', '-v', [CompletionResultType]::ParameterName, 'Log more (-v debug, -vv trace); DSPARK_LOG sets exact filters')
            [CompletionResult]::new('--verbose', '--verbose', [CompletionResultType]::ParameterName, 'Log more (-v debug, -vv trace); DSPARK_LOG sets exact filters')
            [CompletionResult]::new('-h', '-h', [CompletionResultType]::ParameterName, 'Print help (see more with ''--help'')')
            [CompletionResult]::new('--help', '--help', [CompletionResultType]::ParameterName, 'Print help (see more with ''--help'')')
            break
        }
        'dspark;trace;merge' {
            [CompletionResult]::new('-o', '-o', [CompletionResultType]::ParameterName, 'Trace file to write; it must not exist')
            [CompletionResult]::new('--output', '--output', [CompletionResultType]::ParameterName, 'Trace file to write; it must not exist')
            [CompletionResult]::new('--color', '--color', [CompletionResultType]::ParameterName, 'Colour the output; NO_COLOR is honoured')
            [CompletionResult]::new('--json', '--json', [CompletionResultType]::ParameterName, 'Print the result as JSON on stdout (numbers in base units: bytes, microseconds)')
            [CompletionResult]::new('-q', '-q', [CompletionResultType]::ParameterName, 'Print nothing but the result and errors; hides progress bars')
            [CompletionResult]::new('--quiet', '--quiet', [CompletionResultType]::ParameterName, 'Print nothing but the result and errors; hides progress bars')
            [CompletionResult]::new('-v', '-v', [CompletionResultType]::ParameterName, 'Log more (-v debug, -vv trace); DSPARK_LOG sets exact filters')
            [CompletionResult]::new('--verbose', '--verbose', [CompletionResultType]::ParameterName, 'Log more (-v debug, -vv trace); DSPARK_LOG sets exact filters')
            [CompletionResult]::new('-h', '-h', [CompletionResultType]::ParameterName, 'Print help (see more with ''--help'')')
            [CompletionResult]::new('--help', '--help', [CompletionResultType]::ParameterName, 'Print help (see more with ''--help'')')
            break
        }
        'dspark;trace;synth' {
            [CompletionResult]::new('--checkpoint', '--checkpoint', [CompletionResultType]::ParameterName, 'Directory with config.json and the extracted drafter tensors')
            [CompletionResult]::new('--receipt', '--receipt', [CompletionResultType]::ParameterName, 'Copy receipt that the drafter identity is computed from [default: DIR/DSPARK_COPY_DONE]')
            [CompletionResult]::new('--markov', '--markov', [CompletionResultType]::ParameterName, 'Markov cache [default: DIR/markov_top_tokens.json where there is one]')
            [CompletionResult]::new('--synthetic', '--synthetic', [CompletionResultType]::ParameterName, 'Use random weights made in memory, of the live drafter''s size (live: 9.1 GB) or the demo''s (small): for measurements, drafts mean nothing')
            [CompletionResult]::new('--rounds', '--rounds', [CompletionResultType]::ParameterName, 'STEPs to write')
            [CompletionResult]::new('--seed', '--seed', [CompletionResultType]::ParameterName, 'The same seed gives the same bytes')
            [CompletionResult]::new('--requests', '--requests', [CompletionResultType]::ParameterName, 'Requests decoding at once, at most')
            [CompletionResult]::new('--scenario', '--scenario', [CompletionResultType]::ParameterName, 'What may happen, comma-separated [default: all but near-max-len]')
            [CompletionResult]::new('-o', '-o', [CompletionResultType]::ParameterName, 'Trace file to write; it must not exist')
            [CompletionResult]::new('--output', '--output', [CompletionResultType]::ParameterName, 'Trace file to write; it must not exist')
            [CompletionResult]::new('--color', '--color', [CompletionResultType]::ParameterName, 'Colour the output; NO_COLOR is honoured')
            [CompletionResult]::new('--demo', '--demo', [CompletionResultType]::ParameterName, 'Use the tiny synthetic checkpoint inside this program: no files, no GPU')
            [CompletionResult]::new('--json', '--json', [CompletionResultType]::ParameterName, 'Print the result as JSON on stdout (numbers in base units: bytes, microseconds)')
            [CompletionResult]::new('-q', '-q', [CompletionResultType]::ParameterName, 'Print nothing but the result and errors; hides progress bars')
            [CompletionResult]::new('--quiet', '--quiet', [CompletionResultType]::ParameterName, 'Print nothing but the result and errors; hides progress bars')
            [CompletionResult]::new('-v', '-v', [CompletionResultType]::ParameterName, 'Log more (-v debug, -vv trace); DSPARK_LOG sets exact filters')
            [CompletionResult]::new('--verbose', '--verbose', [CompletionResultType]::ParameterName, 'Log more (-v debug, -vv trace); DSPARK_LOG sets exact filters')
            [CompletionResult]::new('-h', '-h', [CompletionResultType]::ParameterName, 'Print help (see more with ''--help'')')
            [CompletionResult]::new('--help', '--help', [CompletionResultType]::ParameterName, 'Print help (see more with ''--help'')')
            break
        }
        'dspark;trace;help' {
            [CompletionResult]::new('info', 'info', [CompletionResultType]::ParameterValue, 'Count what a trace holds and name its anomalies')
            [CompletionResult]::new('cut', 'cut', [CompletionResultType]::ParameterValue, 'Keep a range of rounds, made self-contained by a leading resync')
            [CompletionResult]::new('merge', 'merge', [CompletionResultType]::ParameterValue, 'Join traces of one checkpoint, one after another')
            [CompletionResult]::new('synth', 'synth', [CompletionResultType]::ParameterValue, 'Write a synthetic trace for a checkpoint''s geometry')
            [CompletionResult]::new('help', 'help', [CompletionResultType]::ParameterValue, 'Print this message or the help of the given subcommand(s)')
            break
        }
        'dspark;trace;help;info' {
            break
        }
        'dspark;trace;help;cut' {
            break
        }
        'dspark;trace;help;merge' {
            break
        }
        'dspark;trace;help;synth' {
            break
        }
        'dspark;trace;help;help' {
            break
        }
        'dspark;completions' {
            [CompletionResult]::new('--color', '--color', [CompletionResultType]::ParameterName, 'Colour the output; NO_COLOR is honoured')
            [CompletionResult]::new('--json', '--json', [CompletionResultType]::ParameterName, 'Print the result as JSON on stdout (numbers in base units: bytes, microseconds)')
            [CompletionResult]::new('-q', '-q', [CompletionResultType]::ParameterName, 'Print nothing but the result and errors; hides progress bars')
            [CompletionResult]::new('--quiet', '--quiet', [CompletionResultType]::ParameterName, 'Print nothing but the result and errors; hides progress bars')
            [CompletionResult]::new('-v', '-v', [CompletionResultType]::ParameterName, 'Log more (-v debug, -vv trace); DSPARK_LOG sets exact filters')
            [CompletionResult]::new('--verbose', '--verbose', [CompletionResultType]::ParameterName, 'Log more (-v debug, -vv trace); DSPARK_LOG sets exact filters')
            [CompletionResult]::new('-h', '-h', [CompletionResultType]::ParameterName, 'Print help (see more with ''--help'')')
            [CompletionResult]::new('--help', '--help', [CompletionResultType]::ParameterName, 'Print help (see more with ''--help'')')
            break
        }
        'dspark;man' {
            [CompletionResult]::new('--color', '--color', [CompletionResultType]::ParameterName, 'Colour the output; NO_COLOR is honoured')
            [CompletionResult]::new('--json', '--json', [CompletionResultType]::ParameterName, 'Print the result as JSON on stdout (numbers in base units: bytes, microseconds)')
            [CompletionResult]::new('-q', '-q', [CompletionResultType]::ParameterName, 'Print nothing but the result and errors; hides progress bars')
            [CompletionResult]::new('--quiet', '--quiet', [CompletionResultType]::ParameterName, 'Print nothing but the result and errors; hides progress bars')
            [CompletionResult]::new('-v', '-v', [CompletionResultType]::ParameterName, 'Log more (-v debug, -vv trace); DSPARK_LOG sets exact filters')
            [CompletionResult]::new('--verbose', '--verbose', [CompletionResultType]::ParameterName, 'Log more (-v debug, -vv trace); DSPARK_LOG sets exact filters')
            [CompletionResult]::new('-h', '-h', [CompletionResultType]::ParameterName, 'Print help (see more with ''--help'')')
            [CompletionResult]::new('--help', '--help', [CompletionResultType]::ParameterName, 'Print help (see more with ''--help'')')
            break
        }
        'dspark;help' {
            [CompletionResult]::new('serve', 'serve', [CompletionResultType]::ParameterValue, 'Run the drafter worker until SIGINT or SIGTERM')
            [CompletionResult]::new('identity', 'identity', [CompletionResultType]::ParameterValue, 'Print the drafter and Markov identities that HELLO exchanges')
            [CompletionResult]::new('ping', 'ping', [CompletionResultType]::ParameterValue, 'Measure the round trip to a worker, or wait until it is ready')
            [CompletionResult]::new('stats', 'stats', [CompletionResultType]::ParameterValue, 'Show the worker''s counters and latency percentiles')
            [CompletionResult]::new('replay', 'replay', [CompletionResultType]::ParameterValue, 'Drive a worker with recorded taps, as Spark rank 0 would')
            [CompletionResult]::new('shadow-diff', 'shadow-diff', [CompletionResultType]::ParameterValue, 'Compare two sets of drafts round by round')
            [CompletionResult]::new('gpu-check', 'gpu-check', [CompletionResultType]::ParameterValue, 'Check a GPU and measure drafting on it')
            [CompletionResult]::new('top', 'top', [CompletionResultType]::ParameterValue, 'Watch workers live in the terminal')
            [CompletionResult]::new('doctor', 'doctor', [CompletionResultType]::ParameterValue, 'Check what this machine can run and say how to fix what is missing')
            [CompletionResult]::new('trace', 'trace', [CompletionResultType]::ParameterValue, 'Inspect and make trace files')
            [CompletionResult]::new('completions', 'completions', [CompletionResultType]::ParameterValue, 'Print a shell completion script')
            [CompletionResult]::new('man', 'man', [CompletionResultType]::ParameterValue, 'Write the manual pages, one per command')
            [CompletionResult]::new('help', 'help', [CompletionResultType]::ParameterValue, 'Print this message or the help of the given subcommand(s)')
            break
        }
        'dspark;help;serve' {
            break
        }
        'dspark;help;identity' {
            break
        }
        'dspark;help;ping' {
            break
        }
        'dspark;help;stats' {
            break
        }
        'dspark;help;replay' {
            break
        }
        'dspark;help;shadow-diff' {
            break
        }
        'dspark;help;gpu-check' {
            break
        }
        'dspark;help;top' {
            break
        }
        'dspark;help;doctor' {
            break
        }
        'dspark;help;trace' {
            [CompletionResult]::new('info', 'info', [CompletionResultType]::ParameterValue, 'Count what a trace holds and name its anomalies')
            [CompletionResult]::new('cut', 'cut', [CompletionResultType]::ParameterValue, 'Keep a range of rounds, made self-contained by a leading resync')
            [CompletionResult]::new('merge', 'merge', [CompletionResultType]::ParameterValue, 'Join traces of one checkpoint, one after another')
            [CompletionResult]::new('synth', 'synth', [CompletionResultType]::ParameterValue, 'Write a synthetic trace for a checkpoint''s geometry')
            break
        }
        'dspark;help;trace;info' {
            break
        }
        'dspark;help;trace;cut' {
            break
        }
        'dspark;help;trace;merge' {
            break
        }
        'dspark;help;trace;synth' {
            break
        }
        'dspark;help;completions' {
            break
        }
        'dspark;help;man' {
            break
        }
        'dspark;help;help' {
            break
        }
    })

    $completions.Where{ $_.CompletionText -like "$wordToComplete*" } |
        Sort-Object -Property ListItemText
}
