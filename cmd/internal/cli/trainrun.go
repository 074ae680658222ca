package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/spillway-ml/spillway/activities"
	"github.com/spillway-ml/spillway/activities/access/safefile"
	"github.com/spillway-ml/spillway/cmd/internal/cli/display"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/workflows/chain"
)

// inputsDirectory is where an attempt finds what flags name: the data, the file of the devices, the checkpoint.
const inputsDirectory = "training-inputs"

// trainedOutput names the output with the result directory.
const trainedOutput = "trained"

// trainByEngine trains as a run of the engine whose program is this very binary.
func (t *tool) trainByEngine(ctx context.Context, model modelFile, flags *trainFlags) (err error) {
	p, err := t.prepareTraining(model, flags)
	if err != nil {
		return err
	}
	single, err := chain.Single(p.name)
	if err != nil {
		return &usage{problem: err.Error(), hint: "give it another name with --name"}
	}
	if err := flags.command.checkFiles(p); err != nil {
		return err
	}
	if !flags.stack.set.Changed("pool-cpus") && !flags.stack.set.Changed("function-cpus") {
		flags.stack.noBurst = true // a stack for the occasion: functions train nothing, so the pool has all CPUs
	}
	session, err := t.connectOrStart(ctx, &flags.stack, noApps)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, t.closeForcibly(ctx, session)) }()
	if p.input.CPU == 0 {
		p.input.CPU = partCores(flags.partitions, len(session.stack.PoolCPUs))
	}
	if _, err := t.sendCommand(ctx, session, &flags.command, &p); err != nil {
		return err
	}
	output := t.newProgramView(ctx, session, p.input.MaxAttempts, false)
	defer output.close()
	ended, err := t.runPrepared(ctx, session, single, p, &eventFlags{}, output)
	if err != nil {
		return err
	}
	return t.concludeTraining(ctx, session, ended, p, model, flags)
}

// partCores are as many cores as parts, as far as the pool has them; all of them where the number of parts is left open.
func partCores(partitions, pool int) quantity.Milli {
	if partitions == 0 || partitions > pool {
		partitions = pool
	}
	return quantity.Milli(max(partitions, 1)) * quantity.Core
}

// prepareTraining makes the command of a training.
func (t *tool) prepareTraining(model modelFile, flags *trainFlags) (prepared, error) {
	binary, err := os.Executable()
	if err != nil {
		return prepared{}, fmt.Errorf("find this program: %w", err)
	}
	workingDirectory, err := os.Getwd()
	if err != nil {
		return prepared{}, fmt.Errorf("find the working directory: %w", err)
	}
	c := &flags.command
	c.name, c.code = cmp.Or(c.name, model.name()), cmp.Or(c.code, filepath.Dir(model.path))
	if c.code == noCode {
		return prepared{}, &usage{problem: "--code none: the file of the model is in it", hint: "give the directory, or leave it out"}
	}
	file, err := filepath.Rel(c.code, model.path)
	if err != nil || !filepath.IsLocal(file) {
		return prepared{}, &usage{problem: fmt.Sprintf("%s is not below --code %s", model.path, c.code), hint: "give a directory that has the file in it"}
	}
	arguments := []string{binary, "train", filepath.ToSlash(file) + ":" + model.function}
	for _, name := range changed(flags.how) {
		if value := flags.how.Lookup(strings.TrimPrefix(name, "--")).Value.String(); value != "" {
			arguments = append(arguments, name+"="+value)
		}
	}
	for _, input := range []struct{ flag, path, kind string }{{"--data", flags.data, "data"}, {"--devices", flags.devices, "devices"}, {"--resume", flags.resume, "resume"}} {
		if input.path == "" {
			continue
		}
		absolute, err := filepath.Abs(input.path)
		if err != nil {
			return prepared{}, fmt.Errorf("find %s %s: %w", input.flag, input.path, err)
		}
		where := absolute
		if input.kind != "data" || !flags.dataInPlace {
			where = inputsDirectory + "/" + input.kind + "/" + strings.ReplaceAll(filepath.Base(absolute), "=", "_")
			c.files = append(c.files, where+"="+absolute)
		}
		arguments = append(arguments, input.flag, where)
	}
	absolute, err := filepath.Abs(flags.out)
	if err != nil {
		return prepared{}, fmt.Errorf("find --out %s: %w", flags.out, err)
	}
	arguments = append(arguments, "--out", trainedOutput, "--leave", absolute, "--followed", t.followedBy(flags))
	if flags.sharedOut {
		arguments = append(arguments, "--"+sharedOutFlag)
	}
	if t.quiet {
		arguments = append(arguments, "--quiet")
	}
	c.outputs = []string{trainedOutput + "=" + trainedOutput}
	p, err := c.prepare(arguments, t.deps.Environment, workingDirectory)
	if err != nil {
		return p, err
	}
	p.input.Command.KeepChanged = false // all that is wanted is in the result directory
	if t.speaksUTF8() {
		p.input.Command.Environment = withDefault(p.input.Command.Environment, "LC_ALL", "C.UTF-8")
	}
	return p, nil
}

// withDefault sets a variable that is not set.
func withDefault(variables map[string]string, name, value string) map[string]string {
	if variables == nil {
		variables = map[string]string{}
	}
	if _, set := variables[name]; !set {
		variables[name] = value
	}
	return variables
}

// followedBy says how the attempt shall write what we show.
func (t *tool) followedBy(flags *trainFlags) string {
	switch {
	case flags.json:
		return followedByJSON
	case isTerminal(t.out):
		return followedByTerminal
	default:
		return followedByLines
	}
}

// concludeTraining says how a training has ended, and brings its result back.
func (t *tool) concludeTraining(ctx context.Context, session *session, ended display.Model, p prepared, model modelFile, flags *trainFlags) error {
	t.note("%s", display.CommandEnd(ended.Run))
	if ended.Run.State != predictor.RunSucceeded {
		return t.notTrained(ended, flags)
	}
	encoded, err := session.client.Result(ctx, ended.Run.Run)
	if err != nil {
		return err
	}
	var result chain.Result
	if err := json.Unmarshal(encoded, &result); err != nil {
		return fmt.Errorf("decode the result of run %s: %w", ended.Run.Run, err)
	}
	left := result.Stages[p.name]
	if err := fetchTrained(ctx, session.client, left, flags.out, flags.sharedOut); err != nil {
		return fmt.Errorf("bring back the trained model: %w", err)
	}
	values, err := readTrained(left)
	if err != nil {
		return fmt.Errorf("the result of run %s: %w", ended.Run.Run, err)
	}
	end := *values.Told
	end.Model, end.Run = filepath.Join(flags.out, filepath.FromSlash(values.Model)), ended.Run.Run
	end.File, end.Function = filepath.Base(model.path), model.function
	if values.Checkpoint != "" {
		end.Checkpoint = filepath.Join(flags.out, filepath.FromSlash(values.Checkpoint))
	}
	style, _ := t.styleOf(t.out)
	return tellTrained(t.out, end, style, flags.json)
}

// notTrained says what is left of a training that has failed or was cancelled.
func (t *tool) notTrained(ended display.Model, flags *trainFlags) error {
	if newest := newestCheckpoint(filepath.Join(flags.out, checkpointsDirectory)); newest != "" {
		t.note("the same command with --resume %s goes on from the last checkpoint", newest)
	}
	if code, byItself := exitCode(ended.Run.Error); byItself && ended.Run.State == predictor.RunFailed {
		return &exitError{code}
	}
	return errReported
}

// newestCheckpoint returns the newest of a directory of checkpoints, where a stopped attempt on this host leaves one; empty for none.
func newestCheckpoint(directory string) (newest string) {
	entries, err := os.ReadDir(directory)
	if err != nil {
		return ""
	}
	var at fs.FileInfo
	for _, entry := range entries {
		info, err := entry.Info()
		if err != nil || !info.IsDir() || strings.HasPrefix(entry.Name(), ".") {
			continue
		}
		if at == nil || info.ModTime().After(at.ModTime()) {
			at, newest = info, filepath.Join(directory, entry.Name())
		}
	}
	return newest
}

var errNoResult = errors.New("it has no trained model")

// readTrained decodes what the attempt reported.
func readTrained(left chain.StageResult) (values trainedValues, err error) {
	if len(left.Values) == 0 {
		return values, errNoResult
	}
	encoded, err := json.Marshal(left.Values[0])
	if err != nil {
		return values, err
	}
	if err := json.Unmarshal(encoded, &values); err != nil {
		return values, err
	}
	if values.Told == nil || values.Model == "" {
		return values, errNoResult
	}
	return values, nil
}

// fetchTrained puts the result directory of an attempt where it belongs. Entries replace those of their names: they are of the training that
// this one goes on from.
func fetchTrained(
	ctx context.Context, store activities.Store, left chain.StageResult, out string, shared bool,
) (err error) {
	files := left.Outputs[trainedOutput]
	if len(files) == 0 || !files[0].Tree {
		return errNoResult
	}
	root, err := safefile.Open(out, 0o755, shared)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, root.Close()) }()
	name, scratch, err := safefile.Scratch(root, ".spillway-") // here, so that files are renamed and not copied
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, scratch.Close(), root.RemoveAll(name)) }()
	if err := receive(ctx, store, scratch, trainedOutput, files[0].Artifact, files[0].Tree); err != nil {
		return err
	}
	entries, err := fs.ReadDir(scratch.FS(), trainedOutput)
	if err != nil {
		return err
	}
	for _, entry := range entries {
		if err := root.RemoveAll(entry.Name()); err != nil {
			return err
		}
		if err := root.Rename(filepath.Join(name, trainedOutput, entry.Name()), entry.Name()); err != nil {
			return err
		}
	}
	return nil
}
