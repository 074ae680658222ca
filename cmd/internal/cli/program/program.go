// Package program makes one command, in any language, a run: what is sent, what it prints, and what is brought back.
package program

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spillway-ml/spillway/activities"
	"github.com/spillway-ml/spillway/activities/wait"
	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/cmd/internal/cli/display"
	"github.com/spillway-ml/spillway/cmd/internal/cli/fault"
	"github.com/spillway-ml/spillway/cmd/internal/cli/flag"
	"github.com/spillway-ml/spillway/cmd/internal/cli/follow"
	"github.com/spillway-ml/spillway/cmd/internal/cli/session"
	"github.com/spillway-ml/spillway/cmd/internal/cli/tool"
	"github.com/spillway-ml/spillway/cmd/internal/cli/transfer"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/plan"
	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/workers/command/imports"
	"github.com/spillway-ml/spillway/workflows/chain"
)

// Run starts a command whose files are sent, and shows it until its end.
func Run(
	ctx context.Context, t *tool.Tool, s *session.Session, single chain.Chain, p Prepared, event *flag.Event,
	output follow.View,
) (display.Model, error) {
	if _, err := s.Client.RegisterChain(ctx, single); err != nil {
		return display.Model{}, fmt.Errorf("run command %s: %w", p.Name, err)
	}
	input, err := json.Marshal(p.Input)
	if err != nil {
		return display.Model{}, fmt.Errorf("encode command %s: %w", p.Name, err)
	}
	published, err := s.Client.Publish(ctx, event.Event(p.Name, input))
	if err != nil {
		return display.Model{}, err
	}
	return follow.ToEnd(ctx, t, s, published, output, follow.Cancel)
}

// CheckFiles refuses local files that are not there, before anything is started.
func (f *Flags) CheckFiles(p Prepared) error {
	check := func(name, path string, isDir bool) error {
		info, err := os.Stat(path)
		switch {
		case err != nil:
			return &fault.UsageError{
				Problem: fmt.Sprintf("%s %s: %v", name, path, fault.WithoutPath(err)),
				Hint:    "give one that is there",
			}
		case isDir && !info.IsDir():
			return &fault.UsageError{
				Problem: fmt.Sprintf("%s %s: it is no directory", name, path),
				Hint:    "give the directory, or none",
			}
		}
		return nil
	}
	if err := check("--code", p.directory, true); err != nil {
		return err
	}
	if f.Requirements != "" {
		if err := check("--requirements", f.Requirements, false); err != nil {
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

// checkSize refuses a command that asks for more than any host of the stack has: it would wait for ever, or be given
// less without a word.
func checkSize(hosts []predictor.Host, asked quantity.Size) error {
	var largest quantity.Size
	for _, host := range hosts {
		if silent(host) || fits(asked, host) {
			return nil
		}
		largest.CPU, largest.Memory = max(largest.CPU, host.Capacity.CPU), max(largest.Memory, host.Capacity.Memory)
	}
	if len(hosts) == 0 {
		return nil
	}
	if err := checkGPUs(hosts, "--gpu", asked); err != nil {
		return err
	}
	switch {
	case asked.Memory > largest.Memory:
		return &fault.UsageError{
			Problem: fmt.Sprintf("--memory %s: the pool gives an attempt at most %s", asked.Memory, largest.Memory),
			Hint:    "ask for less, or leave it out: what attempts take is learnt; --pool-memory of dev is what the pool has",
		}
	case asked.CPU > largest.CPU:
		return &fault.UsageError{
			Problem: fmt.Sprintf("--cpu %s: the pool gives an attempt at most %s", asked.CPU, largest.CPU),
			Hint:    "ask for less, or leave it out: what attempts take is learnt; --pool-cpus of dev is what the pool has",
		}
	default:
		return &fault.UsageError{
			Problem: fmt.Sprintf("--cpu %s with --memory %s: no host of the pool has both", asked.CPU, asked.Memory) +
				withGPUs(asked),
			Hint: "ask for less of one of them",
		}
	}
}

// fits reports whether a host may run what asks for so much: also with GPUs that do not work now, or of which nobody
// knows yet.
func fits(asked quantity.Size, host predictor.Host) bool {
	return asked.CPU <= host.Capacity.CPU && asked.Memory <= host.Capacity.Memory && mayHave(asked, host)
}

func mayHave(asked quantity.Size, host predictor.Host) bool {
	return silent(host) || host.GPUsUnknown || host.Could(asked) > 0
}

// silent reports whether a host does not tell what it has.
func silent(host predictor.Host) bool { return host.Capacity.CPU == 0 || host.Capacity.Memory == 0 }

// withGPUs says which GPUs are asked for besides; empty for none.
func withGPUs(asked quantity.Size) string {
	if asked.GPU == 0 {
		return ""
	}
	return " beside " + gpusOf(asked)
}

// gpusOf is what a size asks of GPUs, for people: "2 GPU with 80 GiB on h100".
func gpusOf(s quantity.Size) string {
	s.CPU, s.Memory = 0, 0
	return strings.TrimPrefix(s.String(), "0 cores, 0 B, ")
}

// checkGPUs refuses GPUs that no host of the stack has, also where all of its work: its tasks would wait until somebody
// adds a host. What says who asks for them.
func checkGPUs(hosts []predictor.Host, what string, asked quantity.Size) error {
	if len(hosts) == 0 || slices.ContainsFunc(hosts, func(h predictor.Host) bool { return mayHave(asked, h) }) {
		return nil
	}
	var has []string
	for _, kind := range plan.Kinds(hosts) {
		if kind.GPUs != nil {
			has = append(has, kind.GPUs.String())
		}
	}
	return &fault.UsageError{
		Problem: fmt.Sprintf("%s: it asks for %s, and the GPUs that a host of the pool has for attempts are: %s", what,
			gpusOf(asked), cmp.Or(strings.Join(has, "; or "), "none")),
		Hint: "`spillway doctor` says which GPUs this machine has and what keeps them from being used",
	}
}

// driverPatience is how long a driver may take to set its GPUs up before an engine that has just begun knows of them.
const driverPatience = time.Minute

// AwaitGPUs waits until the hosts of the stack know which GPUs they have, where one that is asked for may be among
// those, and refuses what no host has. What says who asks.
func AwaitGPUs(ctx context.Context, t *tool.Tool, s *session.Session, what string, asked quantity.Size) error {
	if asked.GPU == 0 {
		return nil
	}
	limited, cancel := context.WithTimeout(ctx, driverPatience)
	defer cancel()
	told := false
	for {
		known := slices.DeleteFunc(slices.Clone(s.Stack.Hosts), func(h predictor.Host) bool { return h.GPUsUnknown })
		if len(known) == len(s.Stack.Hosts) || slices.ContainsFunc(known, func(h predictor.Host) bool {
			return h.Could(asked) > 0
		}) {
			return checkGPUs(s.Stack.Hosts, what, asked)
		}
		if !told {
			told = true
			t.Complain("waiting for the driver of the GPUs, which has not answered yet\n")
		}
		if !wait.For(limited, time.Second/4) {
			return ctx.Err() // the task waits for it
		}
		stack, err := s.Client.Stack(ctx)
		if err != nil {
			return err
		}
		s.Stack.Hosts = stack.Hosts
	}
}

// Send sends all that hosts need of this machine, and remembers the directory as it was before. A size that no host has
// is refused first.
func Send(
	ctx context.Context, t *tool.Tool, s *session.Session, flags *Flags, p *Prepared,
) (here transfer.Local, err error) {
	asked := quantity.Size{CPU: p.Input.CPU, Memory: p.Input.Memory}.WithGPUs(p.Input.GPU)
	if err := AwaitGPUs(ctx, t, s, "--gpu", asked); err != nil {
		return here, err
	}
	if err := checkSize(s.Stack.Hosts, asked); err != nil {
		return here, err
	}
	command := &p.Input.Command
	if flags.InPlace || flags.Code != NoCode {
		command.Program, command.Imports = Reader(p.directory)(command.Directory, command.Arguments)
	}
	sendsCode := !flags.InPlace && flags.Code != NoCode
	if !flags.InPlace && !flags.NoFetch {
		if here, err = transfer.LookAt(ctx, p.directory, sendsCode); err != nil {
			return here, err
		}
	}
	if sendsCode {
		sent, err := transfer.Send(ctx, t, s.Client, transfer.Packing{
			Path: p.directory, Code: true, State: s.Stack.StateDir,
		})
		if err != nil {
			return here, err
		}
		command.Code = sent.Artifact
	}
	if flags.Requirements != "" {
		sent, err := transfer.Send(ctx, t, s.Client, transfer.Packing{Path: flags.Requirements})
		if err != nil {
			return here, err
		}
		if sent.Tree {
			return here, &fault.UsageError{
				Problem: "--requirements " + flags.Requirements + ": it is a directory",
				Hint:    "give a file of requirements, such as requirements.txt",
			}
		}
		command.Requirements = sent.Artifact
	}
	for i, file := range p.files {
		sent, err := transfer.Send(ctx, t, s.Client, transfer.Packing{Path: file})
		if err != nil {
			return here, err
		}
		command.Files[i].Artifact, command.Files[i].Tree = sent.Artifact, sent.Tree
	}
	return here, nil
}

// Reader reads in a directory of code what a command mainly runs, and what that imports: by this, stages of which
// nothing is known are taken to be alike.
func Reader(directory string) func(start string, arguments []string) (name string, modules []string) {
	files := os.DirFS(directory)
	return func(start string, arguments []string) (string, []string) {
		read := imports.Of(files, start, arguments)
		return read.Name, read.Imports
	}
}

// BringBack brings back what a command has left, or says where it is.
func BringBack(
	ctx context.Context, t *tool.Tool, store activities.Store, here transfer.Local, left chain.StageResult,
	leaveThere bool,
) error {
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
			t.Note("%s is artifact %s", display.Name(output.Path), output.Artifact.Digest)
		}
		if changedFiles.Digest != "" {
			t.Note("the changed files are artifact %s, a tar archive of %s", changedFiles.Digest,
				quantity.Bytes(changedFiles.Bytes))
		}
		return nil
	}
	if changedFiles.Digest == "" && len(outputs) == 0 {
		return nil
	}
	files, err := here.BringBack(ctx, store, changedFiles, outputs)
	if len(files) > 0 {
		t.Note("%s", saidOf(files, here.Dir))
	}
	for _, file := range files {
		if file.Aside {
			t.Complain("spillway: %s was changed here meanwhile and stays; the program's is %s\n", display.Name(file.Name),
				display.Name(file.Name+transfer.AsideSuffix))
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
func saidOf(files []transfer.Brought, dir string) string {
	var total quantity.Bytes
	var listed []string
	for _, file := range files {
		total += file.Bytes
		if len(listed) < shownFiles {
			listed = append(listed, display.Name(file.Name))
		}
	}
	text := fmt.Sprintf("brought back %s, %s: %s", display.Count(len(files), "file"), total, strings.Join(listed, ", "))
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

// ExitCode finds the exit code of a program that failed by itself in why its run failed.
func ExitCode(failure string) (code int, found bool) {
	match := exitStatus.FindStringSubmatch(failure)
	if match == nil {
		return 0, false
	}
	code, err := strconv.Atoi(match[1])
	return code, err == nil && code > 0 && code < 256
}
