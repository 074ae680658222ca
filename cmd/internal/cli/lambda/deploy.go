package lambda

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/spillway-ml/spillway/activities/artifact/s3store"
	"github.com/spillway-ml/spillway/activities/awslambda"
	"github.com/spillway-ml/spillway/cmd/internal/build"
	"github.com/spillway-ml/spillway/cmd/internal/cli/apps"
	"github.com/spillway-ml/spillway/cmd/internal/cli/display"
	"github.com/spillway-ml/spillway/cmd/internal/cli/fault"
	"github.com/spillway-ml/spillway/cmd/internal/cli/flag"
	"github.com/spillway-ml/spillway/cmd/internal/cli/session"
	"github.com/spillway-ml/spillway/cmd/internal/cli/tool"
	"github.com/spillway-ml/spillway/cmd/internal/engine"
	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/predictor/words"
)

// deployFlags are the flags of `lambda deploy`.
type deployFlags struct {
	place
	arch, role  string
	bucket      string
	artifacts   string
	memory      []string
	timeout     time.Duration
	concurrency int
}

func deployCommand(t *tool.Tool) *cobra.Command {
	flags := &deployFlags{}
	command := &cobra.Command{
		Use:   "deploy DIR|BINARY [FLAGS]",
		Short: "Deploy an app as AWS Lambda functions, one for each memory class",
		Long: `Build the app in DIR as "spillway dev --app DIR" does, or take a BINARY of it, and deploy it as AWS
Lambda functions of the runtime provided.al2023, one for each memory class; print what was done and
how long it took. A second time it says "unchanged". What is interrupted or fails half-way tells
what was done, and the same command goes on from there.

The engine that serves the same build uses these functions: it looks for them before it deploys by
itself, and leaves the role, the timeout and the concurrency as they are. What it adds is the
environment variable that says where artifacts are. Engines that keep artifacts in S3 have functions
of their own each: where the engine has not run yet, or not on this state directory, give it here
with the --artifacts that the engine has.

With --arch of another processor than this machine's, the app is built twice: the functions run the
second program for the build that the engine serves; this needs DIR. The zip is sent in the request,
which takes 50 MB, or with --bucket goes by S3; a program has at most 250 MB.

--timeout and --concurrency that are left out stay what they are; new functions get 15 minutes, and
concurrency that they share with the whole account. The engine plans with 15 minutes: a task that
takes longer than --timeout ends there, and what timed out counts as an attempt.

The exit code is 0 when all functions are as wanted, 1 when AWS refused or did not answer, and 2
when a flag, the program or the credentials are wrong.`,
		Example: `  spillway lambda deploy ./myapp --artifacts s3://my-bucket/spillway/laptop
  spillway lambda deploy ./myapp --role arn:aws:iam::123456789012:role/spillway-function
  spillway lambda deploy ./myapp --arch arm64 --memory 512MiB,1769MiB --timeout 5m
  SPILLWAY_LAMBDA_ROLE=arn:aws:iam::123456789012:role/functions spillway lambda deploy bin/myapp
  spillway lambda deploy ./myapp --bucket my-bucket/spillway
  spillway lambda deploy ./myapp --endpoint local`,
		Args: flag.Positional("DIR or BINARY"),
		RunE: func(cmd *cobra.Command, args []string) error { return deploy(cmd, t, args[0], flags) },
	}
	set := command.Flags()
	set.Var(flag.Choice{Value: &flags.arch, Of: []string{"amd64", "arm64"}}, "arch",
		"processor of the functions (default that of BINARY, or this machine's)")
	set.StringSliceVar(&flags.memory, "memory", nil,
		"memory `CLASSES`, separated by commas, such as 512MiB,1769MiB (default all that are spilled to: "+
			strings.Join(classNames(), ",")+")")
	set.Var(flag.Span{Value: &flags.timeout}, "timeout",
		"how long an invoke may take, in whole seconds (default as it is, 15m where it is new)")
	set.Var(flag.Count{Value: &flags.concurrency, Least: 1}, "concurrency",
		"concurrency of the account that is reserved for each function (default as it is)")
	set.StringVar(&flags.role, "role", "",
		"`ARN` of the IAM role that functions run with (default $"+engine.RoleVariable+")")
	set.StringVar(&flags.bucket, "bucket", "",
		"`BUCKET` of S3, or BUCKET/PREFIX, by which the zip goes, in the region of the functions")
	set.Var(flag.Store{Value: &flags.artifacts, PlaceOnly: true}, "artifacts",
		"where the engine that calls them keeps artifacts: files, or "+s3store.Supported+
			" (default where the state directory keeps them)")
	flags.add(set)
	return command
}

// classNames are the memory classes as --memory takes them.
func classNames() []string {
	var names []string
	for _, megabytes := range awslambda.Classes() {
		names = append(names, fmt.Sprintf("%dMiB", megabytes))
	}
	return names
}

var rolePattern = regexp.MustCompile(`^arn:aws[a-z-]*:iam::[0-9]{12}:role/[A-Za-z0-9+=,.@_/-]+$`)

// check refuses what AWS would refuse too, and memory that no task is spilled to. It returns the memory in MB.
func (f *deployFlags) check(cmd *cobra.Command) ([]int, error) {
	if f.role != "" && !rolePattern.MatchString(f.role) {
		return nil, &fault.UsageError{
			Problem: fmt.Sprintf("--role %s: it is no ARN of an IAM role", flag.Shown(f.role)),
			Hint:    "write it as arn:aws:iam::123456789012:role/NAME; --role wins over $" + engine.RoleVariable,
		}
	}
	if f.timeout%time.Second != 0 || f.timeout > awslambda.MaxTimeout {
		return nil, &fault.UsageError{
			Problem: fmt.Sprintf("--timeout %v: a function takes whole seconds, 15 minutes of them at most", f.timeout),
			Hint:    "write 1s to 15m",
		}
	}
	if err := f.checkLocal(); err != nil {
		return nil, err
	}
	classes := awslambda.Classes()
	if !cmd.Flags().Changed("memory") {
		return classes, nil
	}
	var chosen []int
	for _, text := range f.memory {
		amount, err := quantity.ParseBytes(text)
		megabytes := int(amount / quantity.MiB)
		if err != nil || amount%quantity.MiB != 0 || !slices.Contains(classes, megabytes) {
			return nil, &fault.UsageError{
				Problem: fmt.Sprintf("--memory %s: nothing is spilled to functions of that", flag.Shown(text)),
				Hint:    "choose among " + strings.Join(classNames(), ","),
			}
		}
		if !slices.Contains(chosen, megabytes) {
			chosen = append(chosen, megabytes)
		}
	}
	slices.Sort(chosen)
	return chosen, nil
}

// checkLocal refuses what the function host of this machine cannot do and AWS can.
func (f *deployFlags) checkLocal() error {
	switch {
	case f.where.Endpoint != localEndpoint:
		return nil
	case f.bucket != "":
		return &fault.UsageError{
			Problem: "--bucket is not for --endpoint local: the local function host takes the program from the request",
			Hint:    "leave one of them out",
		}
	case f.arch != "" && f.arch != runtime.GOARCH:
		return &fault.UsageError{
			Problem: fmt.Sprintf("--arch %s: the local function host runs on this machine, which has %s", f.arch,
				runtime.GOARCH),
			Hint: "leave --arch out, or deploy to AWS without --endpoint local",
		}
	}
	return nil
}

func deploy(cmd *cobra.Command, t *tool.Tool, source string, flags *deployFlags) (err error) {
	ctx := cmd.Context()
	if flags.role == "" {
		flags.role, _ = t.Deps.Environment(engine.RoleVariable)
	}
	memory, err := flags.check(cmd)
	if err != nil {
		return err
	}
	// Before AWS: what is no program needs no credentials to be refused.
	program, remove, err := programOf(ctx, t, source, flags.arch)
	if wrong, ok := errors.AsType[*build.Error](err); ok && wrong.Err == nil {
		return &fault.UsageError{
			Problem: err.Error(), Hint: cmp.Or(wrong.Hint, "correct what it says, and deploy again"),
		}
	}
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, remove()) }()
	options := awslambda.Options{Role: flags.role, Timeout: flags.timeout}
	if options.Place, err = flags.functionPlace(ctx, t); err != nil {
		return err
	}
	iv, err := flags.invoker(ctx, t, options, flags.bucket)
	if err != nil {
		return err
	}
	var reserved *int
	if flags.concurrency > 0 {
		reserved = &flags.concurrency
	}
	var all []awslambda.Deployed
	for i, megabytes := range memory {
		var one awslambda.Deployed
		if one, err = iv.Deploy(ctx, program, megabytes, reserved); err != nil {
			break
		}
		all = append(all, one)
		if !flags.asJSON {
			t.Note("%s %s (%d of %d)", one.Name, one.Change, i+1, len(memory))
		}
	}
	return errors.Join(show(t, flags.asJSON, all, len(memory), iv.Endpoint()), stopped(err, len(all), len(memory)))
}

// functionPlace tells functions of this engine from those of others, as the engine does.
func (f *deployFlags) functionPlace(ctx context.Context, t *tool.Tool) (string, error) {
	if f.artifacts == "" && f.where.Endpoint == localEndpoint {
		s, err := session.Connect(ctx, t)
		if err != nil {
			return "", err
		}
		s.Client.Close()
		return s.Stack.FunctionPlace, nil
	}
	dir, err := t.StateDir()
	if err != nil {
		return "", err
	}
	location := f.artifacts
	if location == "" {
		if location, err = engine.ArtifactsOf(dir); err != nil {
			return "", err
		}
	}
	if location == engine.InFiles && !awslambda.IsLoopback(f.where.Endpoint) && f.where.Endpoint != localEndpoint {
		return "", &fault.UsageError{
			Problem: "artifacts are in files of this machine, and no engine calls functions on another that do not reach them",
			Hint:    "give --artifacts s3://BUCKET/PREFIX, as the engine has it",
		}
	}
	return engine.FunctionPlace(dir, location)
}

// programOf builds the app at source for a processor. Remove what it made afterwards.
func programOf(
	ctx context.Context, t *tool.Tool, source, arch string,
) (program awslambda.Build, remove func() error, err error) {
	remove = func() error { return nil }
	info, err := os.Stat(source)
	if err != nil {
		return program, nil, &fault.UsageError{
			Problem: fmt.Sprintf("%s: %v", source, fault.WithoutPath(err)),
			Hint:    "give the directory of a Go main package that calls app.Main, or a binary built from one",
		}
	}
	if !info.IsDir() {
		if arch, err = check(source, arch); err != nil {
			return program, nil, err
		}
	}
	other := arch != "" && arch != runtime.GOARCH
	if other && !info.IsDir() {
		return program, nil, &fault.UsageError{
			Problem: fmt.Sprintf("%s is for %s and this machine has %s: it cannot be asked which app it is", source, arch,
				runtime.GOARCH),
			Hint: "give the directory of its main package, with --arch " + arch,
		}
	}
	app, err := apps.BuildOf(ctx, t, "", source)
	if err != nil {
		return program, nil, err
	}
	program = awslambda.Build{App: app.Descriptor.Name, Digest: app.Digest, Path: app.Path, Architecture: arch}
	if other {
		dir, err := t.MakeStateDir()
		if err != nil {
			return program, nil, err
		}
		t.Note("building %s for %s too", source, arch)
		program.Path, remove, err = build.NewStore(dir, nil).CompileFor(ctx, source, arch)
		if err != nil {
			return program, nil, err
		}
	}
	if program.Architecture, err = check(program.Path, arch); err != nil {
		return program, nil, errors.Join(err, remove())
	}
	return program, remove, nil
}

// check refuses a program that no function runs.
func check(path, arch string) (string, error) {
	found, err := awslambda.CheckProgram(path, arch)
	if problem, ok := errors.AsType[*awslambda.Problem](err); ok {
		return "", &fault.UsageError{Problem: problem.What, Hint: problem.Hint}
	}
	return found, err
}

// goesOn is what to do where nothing better is known.
const goesOn = "the same command goes on from there"

// stopped tells how far a deployment came that did not come to its end.
func stopped(err error, done, of int) error {
	if err == nil {
		return nil
	}
	if errors.Is(err, context.Canceled) {
		return fault.Advise(fmt.Errorf("interrupted: %d of %s deployed", done, words.Count(of, "function")), goesOn)
	}
	return fault.Advise(fmt.Errorf("%d of %s deployed: %w", done, words.Count(of, "function"), err),
		cmp.Or(fault.AdviceOf(err), goesOn))
}

// show prints what was deployed.
func show(t *tool.Tool, asJSON bool, all []awslambda.Deployed, of int, endpoint string) error {
	if asJSON {
		if len(all) < of {
			return nil // standard output holds nothing when it failed
		}
		return t.WriteJSON(all)
	}
	if len(all) == 0 {
		return nil
	}
	table := tabwriter.NewWriter(t.Out, 0, 0, 2, ' ', 0)
	display.Printf(table, "FUNCTION\tMEMORY\tPROCESSOR\tCODE\tTIMEOUT\tRESERVED\tSTATE\tCHANGE\tTIME\n")
	for _, one := range all {
		display.Printf(table, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", display.CleanLine(one.Name), memoryText(one.Memory),
			display.CleanLine(one.Architecture), quantity.Bytes(one.CodeBytes), one.Timeout, reservedText(one.Reserved),
			display.CleanLine(one.State), one.Change, one.Took.Round(time.Millisecond))
	}
	if err := table.Flush(); err != nil {
		return err
	}
	t.Say("%s at %s, with the role %s\n", words.Count(len(all), "function"), display.CleanLine(endpoint),
		display.CleanLine(all[0].Role))
	return nil
}

// reservedText writes the concurrency that is reserved for a function; "-" for what it shares with the account.
func reservedText(reserved *int) string {
	if reserved == nil {
		return "-"
	}
	return words.Grouped(*reserved)
}

// memoryText writes the memory of a function, which is in MB, as AWS does.
func memoryText(megabytes int) string { return fmt.Sprintf("%d MiB", megabytes) }
