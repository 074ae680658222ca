package train

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
	"github.com/spillway-ml/spillway/cmd/internal/cli/fault"
	"github.com/spillway-ml/spillway/cmd/internal/cli/flag"
	"github.com/spillway-ml/spillway/cmd/internal/cli/program"
	"github.com/spillway-ml/spillway/cmd/internal/cli/session"
	"github.com/spillway-ml/spillway/cmd/internal/cli/tool"
	"github.com/spillway-ml/spillway/cmd/internal/cli/transfer"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/workers/training"
	"github.com/spillway-ml/spillway/workflows/chain"
)

// inputsDirectory is where an attempt finds what flags name: the data, the file of the devices, the checkpoint.
const inputsDirectory = "training-inputs"

// trainedOutput names the output with the result directory.
const trainedOutput = "trained"

// trainByEngine trains as a run of the engine whose program is this very binary.
func trainByEngine(ctx context.Context, t *tool.Tool, model modelFile, flags *trainFlags) (err error) {
	p, err := prepareTraining(t, model, flags)
	if err != nil {
		return err
	}
	single, err := chain.Single(p.Name)
	if err != nil {
		return &fault.UsageError{Problem: err.Error(), Hint: "give it another name with --name"}
	}
	if err := flags.command.CheckFiles(p); err != nil {
		return err
	}
	s, err := session.ConnectOrStart(ctx, t, &flags.stack, session.NoApps)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.CloseForcibly(ctx, t.Deps.Interrupted)) }()
	if p.Input.CPU == 0 {
		replicas := max(flags.replicas/max(flags.hosts, 1), 1) // of each host
		p.Input.CPU = partCores(cmp.Or(flags.partitions*replicas, p.Input.GPU.Count),
			max(flags.dataWorkers, 0)*replicas, poolCores(s))
	}
	if err := checkHosts(flags, s); err != nil {
		return err
	}
	if _, err := program.Send(ctx, t, s, &flags.command, &p); err != nil {
		return err
	}
	output := program.NewView(ctx, t, s, p.Input.MaxAttempts, false)
	defer output.Close()
	ended, err := program.Run(ctx, t, s, single, p, &flag.Event{}, output)
	if err != nil {
		return err
	}
	return concludeTraining(ctx, t, s, ended, p, model, flags)
}

// poolCores are those of the largest host of the pool.
func poolCores(s *session.Session) int {
	most := len(s.Stack.PoolCPUs)
	for _, host := range s.Stack.Hosts {
		most = max(most, int(host.Capacity.CPU/quantity.Core))
	}
	return most
}

// checkHosts refuses more hosts than take part in trainings across hosts: the run would wait until somebody adds some.
func checkHosts(flags *trainFlags, s *session.Session) error {
	least, most := flags.gang()
	if most < 2 {
		return nil
	}
	var take, other []string
	for _, host := range s.Stack.Hosts {
		if host.TrainingAddress == "" {
			other = append(other, host.ID)
		} else {
			take = append(take, host.ID)
		}
	}
	if len(take) >= least && len(take) > 0 {
		return nil
	}
	return &fault.UsageError{
		Problem: fmt.Sprintf("--hosts %s: %s of the pool take part in trainings across hosts: %s", hostsFlag{&flags.hosts},
			display.Count(len(take), "host"), cmp.Or(strings.Join(take, ", "), "none")),
		Hint: "start `spillway agent`, or dev, with --training-address IP" +
			cmp.Or(prefixed(" on ", strings.Join(other, ", ")), ""),
	}
}

// prefixed is a text after another; empty where it is.
func prefixed(before, text string) string {
	if text == "" {
		return ""
	}
	return before + text
}

// partCores are as many cores as parts, which are as many as GPUs where there are any and nobody says otherwise, and as
// processes that fetch data, as far as the pool has them; all of them where the number of parts is left open.
func partCores(partitions, dataWorkers, pool int) quantity.Milli {
	cores := partitions + dataWorkers
	if partitions == 0 || cores > pool {
		cores = pool
	}
	return quantity.Milli(max(cores, 1)) * quantity.Core
}

// prepareTraining makes the command of a training.
func prepareTraining(t *tool.Tool, model modelFile, flags *trainFlags) (program.Prepared, error) {
	binary, err := os.Executable()
	if err != nil {
		return program.Prepared{}, fmt.Errorf("find this program: %w", err)
	}
	workingDirectory, err := os.Getwd()
	if err != nil {
		return program.Prepared{}, fmt.Errorf("find the working directory: %w", err)
	}
	c := &flags.command
	c.Name, c.Code = cmp.Or(c.Name, model.name()), cmp.Or(c.Code, filepath.Dir(model.path))
	if c.Code == program.NoCode {
		return program.Prepared{}, &fault.UsageError{
			Problem: "--code none: the file of the model is in it",
			Hint:    "give the directory, or leave it out",
		}
	}
	file, err := filepath.Rel(c.Code, model.path)
	if err != nil || !filepath.IsLocal(file) {
		return program.Prepared{}, &fault.UsageError{
			Problem: fmt.Sprintf("%s is not below --code %s", model.path, c.Code),
			Hint:    "give a directory that has the file in it",
		}
	}
	arguments := []string{binary, "train", filepath.ToSlash(file) + ":" + model.function}
	for _, name := range flag.Changed(flags.how) {
		if value := flags.how.Lookup(strings.TrimPrefix(name, "--")).Value.String(); value != "" {
			arguments = append(arguments, name+"="+value)
		}
	}
	for _, input := range []struct{ flag, path, kind string }{
		{"--data", flags.data, "data"},
		{"--validation-data", flags.validation, "validation"},
		{"--devices", flags.devices, "devices"},
		{"--resume", flags.resume, "resume"},
	} {
		if input.path == "" {
			continue
		}
		absolute, err := filepath.Abs(input.path)
		if err != nil {
			return program.Prepared{}, fmt.Errorf("find %s %s: %w", input.flag, input.path, err)
		}
		where := absolute
		if input.kind != "data" && input.kind != "validation" || !flags.dataInPlace {
			where = inputsDirectory + "/" + input.kind + "/" + strings.ReplaceAll(filepath.Base(absolute), "=", "_")
			c.Files = append(c.Files, where+"="+absolute)
		}
		arguments = append(arguments, input.flag, where)
	}
	absolute, err := filepath.Abs(flags.out)
	if err != nil {
		return program.Prepared{}, fmt.Errorf("find --out %s: %w", flags.out, err)
	}
	arguments = append(arguments, "--out", trainedOutput, "--leave", absolute, "--followed", followedBy(t, flags))
	if flags.sharedOut {
		arguments = append(arguments, "--"+flag.SharedOut)
	}
	if t.Quiet {
		arguments = append(arguments, "--quiet")
	}
	c.Outputs = []string{trainedOutput + "=" + trainedOutput}
	p, err := c.Prepare(arguments, t.Deps.Environment, workingDirectory)
	if err != nil {
		return p, err
	}
	if least, most := flags.gang(); most > 1 {
		p.Input.Command.LeastHosts, p.Input.Command.Hosts = least, most
	}
	p.Input.Command.KeepChanged = false // all that is wanted is in the result directory
	if t.SpeaksUTF8() {
		p.Input.Command.Environment = withDefault(p.Input.Command.Environment, "LC_ALL", "C.UTF-8")
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
func followedBy(t *tool.Tool, flags *trainFlags) string {
	switch {
	case flags.json:
		return followedByJSON
	case tool.IsTerminal(t.Out):
		return followedByTerminal
	default:
		return followedByLines
	}
}

// concludeTraining says how a training has ended, and brings its result back.
func concludeTraining(
	ctx context.Context, t *tool.Tool, s *session.Session, ended display.Model, p program.Prepared, model modelFile,
	flags *trainFlags,
) error {
	t.Note("%s", display.CommandEnd(ended.Run))
	if ended.Run.State != predictor.RunSucceeded {
		return notTrained(t, ended, flags)
	}
	encoded, err := s.Client.Result(ctx, ended.Run.Run)
	if err != nil {
		return err
	}
	var result chain.Result
	if err := json.Unmarshal(encoded, &result); err != nil {
		return fmt.Errorf("decode the result of run %s: %w", ended.Run.Run, err)
	}
	left := result.Stages[p.Name]
	if err := fetchTrained(ctx, s.Client, left, flags.out, flags.sharedOut); err != nil {
		return fmt.Errorf("bring back the trained model: %w", err)
	}
	values, err := readTrained(left)
	if err != nil {
		return fmt.Errorf("the result of run %s: %w", ended.Run.Run, err)
	}
	end := *values.Told
	end.Model, end.Run = filepath.Join(flags.out, filepath.FromSlash(values.Model)), ended.Run.Run
	if values.BestModel != "" {
		end.BestModel = filepath.Join(flags.out, filepath.FromSlash(values.BestModel))
	}
	end.File, end.Function = filepath.Base(model.path), model.function
	if values.Checkpoint != "" {
		end.Checkpoint = filepath.Join(flags.out, filepath.FromSlash(values.Checkpoint))
	}
	style, _ := t.StyleOf(t.Out)
	return tellTrained(t.Out, end, style, flags.json)
}

// notTrained says what is left of a training that has failed or was cancelled.
func notTrained(t *tool.Tool, ended display.Model, flags *trainFlags) error {
	if newest := training.NewestCheckpoint(filepath.Join(flags.out, training.Checkpoints)); newest != "" {
		t.Note("the same command with --resume %s goes on from the last checkpoint", newest)
	}
	if code, byItself := program.ExitCode(ended.Run.Error); byItself && ended.Run.State == predictor.RunFailed {
		return &fault.ExitError{Code: code}
	}
	return fault.ErrReported
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

// fetchTrained puts the result directory of an attempt where it belongs. Entries replace those of their names: they are
// of the training that this one goes on from.
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
	if err := transfer.Receive(ctx, store, scratch, trainedOutput, files[0].Artifact, files[0].Tree); err != nil {
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
