package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/spillway-ml/spillway/activities"
	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/cmd/internal/cli/display"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/workflows/chain"
	"github.com/spillway-ml/spillway/workflows/engine"
)

// runProgram runs one command to its end, and shows what it prints.
func (t *tool) runProgram(ctx context.Context, arguments []string, flags *runFlags) (err error) {
	var given []string
	for _, one := range []struct {
		name string
		set  bool
	}{
		{"--app", len(flags.stack.apps) > 0},
		{"--input", flags.event.input != ""},
		{"--cache", flags.event.cache},
		{"--out", flags.out != ""},
		{"--" + sharedOutFlag, flags.sharedOut},
	} {
		if one.set {
			given = append(given, one.name)
		}
	}
	if err := refuse(given, "a command", "a command takes its input as arguments and files; see --file and --output"); err != nil {
		return err
	}
	workingDirectory, err := os.Getwd()
	if err != nil {
		return fmt.Errorf("find the working directory: %w", err)
	}
	p, err := flags.command.prepare(arguments, t.deps.Environment, workingDirectory)
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
	session, err := t.connectOrStart(ctx, &flags.stack, noApps)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, t.closeForcibly(ctx, session)) }()
	here, err := t.sendCommand(ctx, session, &flags.command, &p)
	if err != nil {
		return err
	}
	output := t.newProgramView(ctx, session, cmp.Or(p.input.MaxAttempts, engine.DefaultMaxAttempts), flags.json)
	defer output.close()
	model, err := t.runPrepared(ctx, session, single, p, &flags.event, output)
	if err != nil {
		return err
	}
	return t.concludeProgram(ctx, session, model, p, here, flags)
}

// runPrepared starts a command whose files are sent, and shows it until its end.
func (t *tool) runPrepared(ctx context.Context, session *session, single chain.Chain, p prepared, event *eventFlags, output view) (display.Model, error) {
	if _, err := session.client.RegisterChain(ctx, single); err != nil {
		return display.Model{}, fmt.Errorf("run command %s: %w", p.name, err)
	}
	input, err := json.Marshal(p.input)
	if err != nil {
		return display.Model{}, fmt.Errorf("encode command %s: %w", p.name, err)
	}
	published, err := session.client.Publish(ctx, event.event(p.name, input))
	if err != nil {
		return display.Model{}, err
	}
	return t.followToEnd(ctx, session, published, output, cancelRun)
}

// checkFiles refuses local files that are not there, before anything is started.
func (f *commandFlags) checkFiles(p prepared) error {
	check := func(flag, path string, isDir bool) error {
		info, err := os.Stat(path)
		switch {
		case err != nil:
			return &usage{problem: fmt.Sprintf("%s %s: %v", flag, path, unwrapPath(err)), hint: "give one that is there"}
		case isDir && !info.IsDir():
			return &usage{problem: fmt.Sprintf("%s %s: it is no directory", flag, path), hint: "give the directory, or none"}
		}
		return nil
	}
	if err := check("--code", p.directory, true); err != nil {
		return err
	}
	if f.requirements != "" {
		if err := check("--requirements", f.requirements, false); err != nil {
			return err
		}
	}
	for _, file := range p.files {
		if err := check("--file", file, false); err != nil {
			return err
		}
	}
	return nil
}

// sendCommand sends all that hosts need of this machine, and remembers the directory as it was before.
func (t *tool) sendCommand(ctx context.Context, session *session, flags *commandFlags, p *prepared) (here local, err error) {
	command := &p.input.Command
	sendsCode := !flags.inPlace && flags.code != noCode
	if !flags.inPlace && !flags.noFetch {
		if here, err = lookAt(ctx, p.directory, sendsCode); err != nil {
			return here, err
		}
	}
	if sendsCode {
		sent, err := t.send(ctx, session.client, packing{path: p.directory, code: true})
		if err != nil {
			return here, err
		}
		command.Code = sent.Artifact
	}
	if flags.requirements != "" {
		sent, err := t.send(ctx, session.client, packing{path: flags.requirements})
		if err != nil {
			return here, err
		}
		if sent.Tree {
			return here, &usage{problem: "--requirements " + flags.requirements + ": it is a directory", hint: "give a file of requirements, such as requirements.txt"}
		}
		command.Requirements = sent.Artifact
	}
	for i, file := range p.files {
		sent, err := t.send(ctx, session.client, packing{path: file})
		if err != nil {
			return here, err
		}
		command.Files[i].Artifact, command.Files[i].Tree = sent.Artifact, sent.Tree
	}
	return here, nil
}

// concludeProgram says how a command has ended, and brings back what it left.
func (t *tool) concludeProgram(ctx context.Context, session *session, model display.Model, p prepared, here local, flags *runFlags) error {
	succeeded := model.Run.State == predictor.RunSucceeded
	var left chain.StageResult
	if succeeded {
		encoded, err := session.client.Result(ctx, model.Run.Run)
		if err != nil {
			return err
		}
		model.Run.Result = encoded
		var result chain.Result
		if err := json.Unmarshal(encoded, &result); err != nil {
			return fmt.Errorf("decode the result of run %s: %w", model.Run.Run, err)
		}
		left = result.Stages[p.name]
	}
	if flags.json {
		if err := t.writeJSON(display.NewReport(model, session.stack.PoolCPUs, session.stack.FunctionCPUs)); err != nil {
			return err
		}
	}
	t.note("%s", display.CommandEnd(model.Run))
	if !succeeded {
		if code, ended := exitCode(model.Run.Error); ended && model.Run.State == predictor.RunFailed {
			return &exitError{code}
		}
		return errReported
	}
	for _, values := range left.Values {
		if text := display.Values(values); text != "" {
			t.note("result: %s", text)
		}
	}
	if flags.command.inPlace {
		return nil
	}
	return t.bringBack(ctx, session.client, here, left, flags.command.noFetch)
}

// note writes a line about a run to standard error, so that standard output has the program's own only.
func (t *tool) note(format string, args ...any) {
	if !t.quiet {
		t.complain("spillway: "+format+"\n", args...)
	}
}

// bringBack brings back what a command has left, or says where it is.
func (t *tool) bringBack(ctx context.Context, store activities.Store, here local, left chain.StageResult, leaveThere bool) error {
	var outputs []wire.CommandFile
	for _, name := range slices.Sorted(maps.Keys(left.Outputs)) {
		outputs = append(outputs, left.Outputs[name]...)
	}
	var changedFiles activities.Ref
	if left.Changed != nil {
		changedFiles = *left.Changed
	}
	if leaveThere {
		for _, output := range outputs {
			t.note("%s is artifact %s", display.Name(output.Path), output.Artifact.Digest)
		}
		if changedFiles.Digest != "" {
			t.note("the changed files are artifact %s, a tar archive of %s", changedFiles.Digest, quantity.Bytes(changedFiles.Bytes))
		}
		return nil
	}
	if changedFiles.Digest == "" && len(outputs) == 0 {
		return nil
	}
	files, err := here.bringBack(ctx, store, changedFiles, outputs)
	if len(files) > 0 {
		t.note("%s", saidOf(files, here.dir))
	}
	for _, file := range files {
		if file.aside {
			t.complain("spillway: %s was changed here meanwhile and stays; the program's is %s\n", display.Name(file.name), display.Name(file.name+asideSuffix))
		}
	}
	if err != nil {
		return fmt.Errorf("bring back what the program left: %w", err)
	}
	return nil
}

// shownFiles is how many files are named.
const shownFiles = 6

// saidOf names the files that were brought back.
func saidOf(files []brought, dir string) string {
	var total quantity.Bytes
	var listed []string
	for _, file := range files {
		total += file.bytes
		if len(listed) < shownFiles {
			listed = append(listed, display.Name(file.name))
		}
	}
	text := fmt.Sprintf("brought back %s, %s: %s", counted(len(files), "file"), total, strings.Join(listed, ", "))
	if more := len(files) - len(listed); more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	if filepath.Clean(dir) != "." {
		text += " (in " + dir + ")"
	}
	return text
}

// exitStatus is how a host says that a program ended by itself.
var exitStatus = regexp.MustCompile(`the command ended with exit (?:status|code) (\d+)`)

// exitCode finds the exit code of a program that failed by itself in why its run failed.
func exitCode(failure string) (code int, found bool) {
	match := exitStatus.FindStringSubmatch(failure)
	if match == nil {
		return 0, false
	}
	code, err := strconv.Atoi(match[1])
	return code, err == nil && code > 0 && code < 256
}
