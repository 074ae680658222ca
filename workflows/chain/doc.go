// Package chain reads pipelines of command stages from YAML, and runs them: any program in any language, without a line
// of Go.
//
//	name: churn
//	goal: {deadline: 30m, confidence: 0.95, budget: 2.00, minimise: cost}   # for runs that bring none
//	code: .                              # the directory that every stage runs in; the default; `none` for none
//	python: {requirements: requirements.txt}
//	environment: {PYTHONHASHSEED: 0}     # for every stage; it is in the run's history, so no secrets
//	parameters: {epochs: 3, lr: 0.1}     # the run's input and its defaults: spillway run churn --input '{"epochs": 5}'
//	inputs: {raw: data/raw.csv}          # files and directories beside this file
//	on: [{subject: data.new, filter: {kind: csv}, max_runs: 1}, {schedule: "@daily", input: {epochs: 10}}]
//	stages:
//	  prepare:
//	    run: python prepare.py --in raw.csv --out clean.csv
//	    files: {raw.csv: inputs.raw}     # where it is put: what it is
//	    outputs: {clean: clean.csv, plots: {path: plots/, optional: true}}
//	    memory: 1GiB
//	  train:
//	    for_each: {lr: [0.1, 0.01], seed: {from: 1, to: 3}}   # six tasks
//	    run: [python, train.py, --lr, "${lr}", --epochs, "${epochs}"]
//	    files: {clean.csv: prepare.clean}
//	    outputs: {model: model.pt}
//	  pick:
//	    run: python pick.py models/
//	    files: {models/: train.model}    # models/0 to models/5, in the order of the tasks
//
// A stage starts as soon as the stages that it refers to have ended, besides those that its `after` lists. A run stops
// at the first stage that fails.
//
// # Keys of a stage
//
// run is the program: a list of arguments, or text for `sh -e -c`, which ends at the first line that fails. directory
// is where below the code it starts, image the container image that it runs in, environment what is set for it; secrets
// (secrets: [openai-api-key]) are what the operator of the server has under these names, in variables of the program
// (OPENAI_API_KEY) and nowhere else. cpu (2, 0.5, 500m) and memory (512MiB, 1.5GiB, 2GB) are what an attempt is given
// until its use is known; gpu (1, or {count: 2, class: h100, memory: 40GiB}, the memory of each) gives it whole GPUs
// for itself. timeout bounds one attempt, attempts is how often it may fail (3), grace is the time between SIGTERM and
// SIGKILL (10s). cache: true is for programs whose outputs depend on nothing but the program, its code and its files,
// and that are run for them alone: a run then takes what another run made with the same ones instead of running it
// again. cache: {version: "2", for: 24h} takes only results of the same version, and none that are older.
//
// files are put into the working directory: `inputs.NAME`, `STAGE.OUTPUT`, or a variable of for_each that stands for an
// output. Files of a stage that fans out go into a directory, written with a slash at its end, under the number of
// their task, from 0. An optional output that was left out is no file. outputs are files or directories that the
// program leaves.
//
// for_each calls the stage once for every combination of its variables, the last varying fastest, at most 10,000 times.
// A variable takes the values of a list, of a range of whole numbers {from, to, step} that includes both ends, of a
// parameter that is a list (parameters.NAME), of a list that an earlier program reported as its result
// (STAGE.result.KEY), or the outputs of a stage that fans out (STAGE.OUTPUT).
//
// # Reports
//
// A program may write JSON lines to the file that $SPILLWAY_REPORT names: {"progress": 3, "metrics": {"loss": 0.2}}
// when a step is done, {"result": {...}} with values for later stages, {"checkpoint": "state.pt"} with what another
// attempt finds at $SPILLWAY_RESUME, and {"retry": false} when that would fail in the same way. One that knows how much
// there is to do says so, in steps, rows or bytes: {"progress": 1200, "of": 5000}. Its end is predicted by that, also
// in its first run and where the next input has another number of rows. In Python, spillway.progress(1200, 5000) and
// the like write these lines, of a module that every attempt finds.
//
// # Values
//
// ${NAME} is a variable of for_each, or else a parameter, and ${STAGE.result.KEY} a value that an earlier program
// reported; $${ is written for ${ itself. In a list of arguments and in the environment the value takes its place as it
// is. In text the shell reads it from the environment, so that it stays one word and is never read as a part of the
// script, whatever it contains.
package chain
