package cli

import "github.com/spf13/cobra"

// topics are pages of help that are no commands: `spillway help TOPIC` prints them.
func topics() []*cobra.Command {
	return []*cobra.Command{exitCodesTopic(), goalsTopic(), sizesTopic(), settingsTopic(), moneyTopic()}
}

func exitCodesTopic() *cobra.Command {
	return &cobra.Command{
		Use:   "exit-codes",
		Short: "What the exit code of a command says",
		Long: `The exit codes of spillway:

  0   What was asked for was done. For run, and for show and retry that follow a run, the run
      succeeded.
  1   It was tried and did not work: the run failed or was cancelled, no stack runs, a run has ended
      or has not, what it left is gone, the engine is of a version that does not have what is
      asked for, doctor found a problem.
  2   It was refused at the door, and nothing was done: a flag or an argument is wrong, or names
      what is not there (a run, a stage, a pipeline, a binding, a dead letter, a file), an input is
      not JSON, a goal cannot be met.
  N   "spillway run -- PROGRAM" ends with the exit code of the program, 1 to 255. Where the program
      was killed or could not be started, it ends with 1.

What went wrong is written to standard error as "spillway: COMMAND: what was wrong", with what to do
about it on the next line. Standard output then holds nothing, or with --json one JSON value that is
whole.`,
	}
}

func goalsTopic() *cobra.Command {
	return &cobra.Command{
		Use:   "goals",
		Short: "What the goal of a run is, and how it is kept",
		Long: `The goal of a run is any of these, given to run, trigger and bind, and changed with "spillway goal
RUN":

  --deadline 10m        how long after its start the run shall end
  --confidence 0.99     the probability with which the deadline is to be met; 0.9 unless said
  --budget 0.50         the most that it may cost, in US dollars
  --minimise cost       never pay more to finish earlier
  --minimise latency    pay whatever the budget allows to finish earlier

The deadline wins over the objective: as much is spilled to functions as meets it with the
confidence that is asked, by how run times differ and how few of them are known. The budget bounds
both: the upper price of a task is reserved before the task is scheduled. A run without an objective
buys time as long as an hour of earlier finish costs less than --value-of-time of dev and run.

What is expected of a run comes with an interval in which 8 of 10 such runs end. Until an earlier
run matches, it is unknown, and only what is impossible for certain is refused: a deadline that has
passed, a budget that is spent. When a goal is going to be missed, an alert says so: in the live
display, on NATS, and to each --alert-webhook; another one says when that is over.

"spillway goal RUN" shows what else could be had, "--dry-run" what another goal would change.`,
	}
}

func sizesTopic() *cobra.Command {
	return &cobra.Command{
		Use:   "sizes",
		Short: "How much CPU and memory an attempt gets",
		Long: `Nobody has to say how large a stage is.

The first attempts get what the stage's code declares, else what stages that are alike took (the
same app, program or interpreter), corrected by each attempt that ends, and grow beyond it where the
host has room. From five attempts on, memory is a line over what is known before an attempt runs
(the bytes of its input, or the number in it that explains the peaks best), raised so far above past
peaks as their spread demands. The share of cores is a choice along how fast a stage is with each:
more where it is worth them, fewer each where many wait; a limit that holds attempts back is raised.
What is learned outlives restarts and new builds.

An attempt that runs out of memory is tried again with twice as much, and counts as one of the
attempts of its stage. Errors, panics, exit codes, timeouts and lost hosts raise nothing. A stage
whose predictions are off by more than a bound goes back to its static size and says so.

"spillway show RUN --why" tells for every stage what it holds, why, and how well that was predicted;
"--predictor shadow" of dev and run predicts and grants nothing.`,
	}
}

func settingsTopic() *cobra.Command {
	return &cobra.Command{
		Use:   "settings",
		Short: "Where settings are said: flags, environment, file",
		Long: `What a flag of dev, or of another command that starts a stack, says may also stand in a file and in
the environment. The file is YAML, its keys are the flags without their dashes, and what a flag
takes several times is a list:

  state: /var/lib/spillway
  pool-cpus: 0-7
  value-of-time: 0.50
  artifacts: s3://my-bucket/spillway?region=eu-west-1

--config FILE names it, or SPILLWAY_CONFIG. A path in it that is relative starts at the directory of
the file. The variable of a setting is its name in upper case after SPILLWAY_: SPILLWAY_POOL_CPUS;
several values have spaces between them, and an empty one says nothing. That of --alert-webhook is
SPILLWAY_ALERT_WEBHOOKS.

The command line wins over the environment, that over the file, and that over the default; a list is
replaced, not added to. Settings that a command does not have are for others. All that is wrong is
told at the start, with its line, and nothing is started.

"spillway config check" also tries what the settings name, "spillway config show" tells where each
comes from, and "spillway config schema" prints the JSON schema of the file, for editors:

  # yaml-language-server: $schema=./config.schema.json

Secrets stand in files of their own, which only the user of the engine can read, and whose names are
the settings.`,
	}
}

func moneyTopic() *cobra.Command {
	return &cobra.Command{
		Use:   "money",
		Short: "What things cost, and who pays",
		Long: `Amounts are US dollars with four digits. In JSON, bills and budgets are in whole picodollars (1e-12
dollars), so that sums are exact, and what goal and frontier expect is in dollars; the units are in
the names. Prices come from a catalogue with the date and source of each; --prices FILE of dev and
run gives another, --host-price the price of the whole pool.

  pool       An attempt pays for the part of its host that it holds, for as long as it holds it.
  function   An attempt pays as AWS Lambda bills: each GiB of its memory class for each second, by
             the millisecond, and each invoke, times --function-price-factor.
  idle       What a host costs while nobody holds it is shared out, minute by minute, to those who
             held something of it in that minute; a minute in which nobody did is told as nobody's.
  wasted     What attempts cost that did not succeed.
  reused     Results of earlier runs cost nothing again; what they cost when they were made is told
             as saved.
  static     What the same attempts would have cost had each held one size for its stage: what its
             code asks for, or else what its attempts were seen to need.

"spillway cost" prints the bill.`,
	}
}
