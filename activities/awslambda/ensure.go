package awslambda

import (
	"archive/zip"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/lambda"
	"github.com/aws/aws-sdk-go-v2/service/lambda/types"

	"github.com/spillway-ml/spillway/activities/wait"
)

// A Build is a user's binary, which is also a bootstrap for the runtime provided.al2023.
type Build struct {
	// App is the name of the application; it becomes part of the function's name.
	App string
	// Digest is the sha256 of the binary in hex, with or without "sha256:". Builds with the same digest are the
	// same.
	Digest string
	// Path is the file of the binary.
	Path string
	// Architecture is the processor that the binary is for, as Go ("amd64", "arm64") or AWS ("x86_64") names it.
	// Empty means this machine's.
	Architecture string
	// Runtime is AWS's name of the runtime. Empty means provided.al2023, which starts the binary; a managed one, such as
	// "python3.13", starts it too, as the wrapper of its own, so that the binary finds the language beside it.
	Runtime string
}

// Ensure makes sure that build is deployed with memory MB of memory, from 128 to 10240, and returns the name of its
// function. Concurrent callers share one deployment; once it has succeeded, Ensure returns at once. A function that is
// there already with the same code is used, be it of an earlier process or of [Invoker.Deploy]: it keeps what the
// Options leave open. The call waits until AWS has made the function active, which takes seconds.
func (iv *Invoker) Ensure(ctx context.Context, build Build, memory int) (functionName string, err error) {
	name, err := iv.nameOf(&build, memory)
	if err != nil {
		return "", err
	}
	return iv.deployments.do(ctx, name, func() (string, error) {
		d := deployment{build: build, want: iv.wanted(build, name, memory)}
		if _, err := iv.deploy(ctx, &d); err != nil {
			return "", fmt.Errorf("deploy %s as function %s: %w", build.App, name, err)
		}
		iv.log.InfoContext(ctx, "function deployed", "function", name, "memory_mb", memory)
		return name, nil
	})
}

// nameOf returns the name of the function of a build, whose digest it checks and writes without its algorithm.
func (iv *Invoker) nameOf(build *Build, memory int) (string, error) {
	digest := strings.TrimPrefix(build.Digest, "sha256:")
	if !isDigest(digest) {
		return "", fmt.Errorf("deploy %s: digest %q is not a sha256 in hex", build.App, build.Digest)
	}
	build.Digest = digest
	return functionNameOf(iv.opts.Prefix, build.App, digest, PlaceOf(iv.opts.Place), memory), nil
}

// deployment is one function on its way to what it should be.
type deployment struct {
	build Build
	want  *lambda.CreateFunctionInput // without its code; a nil Role, Timeout or variable is kept as it is
	// code is the digest of the zip, in base64, that the function shall have; empty where its description tells enough.
	code    string
	changes int // of what it is, so far
	created bool
}

// deploy makes a function what it should be, and returns what it is then.
func (iv *Invoker) deploy(ctx context.Context, d *deployment) (*lambda.GetFunctionConfigurationOutput, error) {
	name := *d.want.FunctionName
	state, err := iv.state(ctx, name)
	if errors.Is(err, ErrNotFound) {
		if err := iv.create(ctx, d); err != nil {
			return nil, err
		}
		state, err = iv.state(ctx, name)
	}
	for delay := 50 * time.Millisecond; ; delay = min(2*delay, 2*time.Second) {
		if err != nil {
			return nil, err
		}
		next, err := nextStep(d, state)
		switch {
		case err != nil:
			return nil, err
		case next == done:
			return state, nil
		case next != await && d.changes == maxChanges:
			return nil, fmt.Errorf("the function does not take these settings%s; another process may be changing it too: "+
				"use another prefix", reasonOf(state))
		case next == configure:
			d.changes++
			err = iv.configure(ctx, d.want, state)
		case next == recode:
			d.changes++
			err = iv.recode(ctx, d)
		}
		if err != nil {
			return nil, err
		}
		if !wait.For(ctx, delay) {
			return nil, fmt.Errorf("wait until the function is active: %w", context.Cause(ctx))
		}
		if state, err = iv.state(ctx, name); err != nil {
			return nil, err
		}
	}
}

// reasonOf is why the last change of a function failed, in brackets; empty where it did not.
func reasonOf(state *lambda.GetFunctionConfigurationOutput) string {
	if reason := aws.ToString(state.LastUpdateStatusReason); reason != "" {
		return " (" + reason + ")"
	}
	return ""
}

// A managed runtime starts the program that this variable names in its own place: here what provided.al2023 starts.
// Source: https://docs.aws.amazon.com/lambda/latest/dg/runtimes-modify.html#runtime-wrapper
const wrapperVariable, wrapper = "AWS_LAMBDA_EXEC_WRAPPER", "/var/task/bootstrap"

// maxChanges bounds how often a deployment changes a function, so that two processes with different settings do not
// change them for ever.
const maxChanges = 5

// step is what a deployment does next.
type step int

const (
	done      step = iota
	await          // until the function is active
	configure      // the function has other settings
	recode         // the function has other code
)

// nextStep decides how to go on from the state that a function is in.
func nextStep(d *deployment, got *lambda.GetFunctionConfigurationOutput) (step, error) {
	description := aws.ToString(got.Description)
	switch {
	case description != *d.want.Description:
		return done, fmt.Errorf("a function of this name has other code (%q instead of %q): delete it or choose "+
			"another prefix", description, *d.want.Description)
	case got.State == types.StateFailed:
		return done, fmt.Errorf("the function is in state Failed: %s", aws.ToString(got.StateReason))
	case got.State == types.StatePending, got.LastUpdateStatus == types.LastUpdateStatusInProgress:
		return await, nil
	case d.code != "" && d.code != aws.ToString(got.CodeSha256),
		d.code != "" && !slices.Equal(d.want.Architectures, got.Architectures):
		return recode, nil
	case !sameSettings(d.want, got):
		return configure, nil
	default:
		return done, nil
	}
}

// sameSettings reports whether a function has the settings wanted.
func sameSettings(want *lambda.CreateFunctionInput, got *lambda.GetFunctionConfigurationOutput) bool {
	variables := variablesOf(got)
	for name, value := range want.Environment.Variables {
		if held, there := variables[name]; !there || held != value {
			return false
		}
	}
	return want.Runtime == got.Runtime && (want.Timeout == nil || *want.Timeout == aws.ToInt32(got.Timeout)) &&
		aws.ToInt32(want.MemorySize) == aws.ToInt32(got.MemorySize) &&
		(want.Role == nil || *want.Role == aws.ToString(got.Role))
}

// variablesOf returns the environment variables that a function has.
func variablesOf(got *lambda.GetFunctionConfigurationOutput) map[string]string {
	if got.Environment == nil {
		return nil
	}
	return got.Environment.Variables
}

// wanted returns the function that build should have, without its zip. Its description carries the digest, because
// the name holds only a part, and the digest that AWS computes is of the zip and not of the binary.
func (iv *Invoker) wanted(build Build, name string, memory int) *lambda.CreateFunctionInput {
	variables, language := iv.opts.Environment, types.RuntimeProvidedal2023
	if build.Runtime != "" {
		language, variables = types.Runtime(build.Runtime), maps.Clone(variables)
		if variables == nil {
			variables = make(map[string]string)
		}
		variables[wrapperVariable] = wrapper
	}
	want := &lambda.CreateFunctionInput{
		FunctionName:  &name,
		Description:   aws.String(describedAs + build.Digest),
		Runtime:       language,
		Handler:       aws.String("bootstrap"),
		PackageType:   types.PackageTypeZip,
		Architectures: []types.Architecture{architecture(build.Architecture)},
		MemorySize:    aws.Int32(int32(memory)),
		Environment:   &types.Environment{Variables: variables},
		Tags:          tagsOf(build),
	}
	if iv.opts.Role != "" {
		want.Role = &iv.opts.Role
	}
	if iv.opts.Timeout != 0 {
		want.Timeout = aws.Int32(int32(iv.opts.Timeout / time.Second))
	}
	return want
}

// describedAs begins the description of every function, which its build's digest follows.
const describedAs = "spillway build sha256:"

// The tags of every function, by which the tools of AWS find them and add up what they cost.
const (
	tagApp   = "spillway:app"
	tagBuild = "spillway:build"
)

func tagsOf(build Build) map[string]string {
	return map[string]string{tagApp: build.App, tagBuild: build.Digest}
}

// state returns what a function is at the moment.
func (iv *Invoker) state(ctx context.Context, name string) (*lambda.GetFunctionConfigurationOutput, error) {
	out, err := iv.client.GetFunctionConfiguration(ctx, &lambda.GetFunctionConfigurationInput{FunctionName: &name})
	return out, classify(err)
}

// create creates a function. One that someone else created in the meantime is as good.
func (iv *Invoker) create(ctx context.Context, d *deployment) error {
	in := *d.want
	if in.Role == nil && isLocal(iv.client) {
		in.Role = aws.String(localRole)
	}
	if in.Role == nil {
		return errNoRole()
	}
	if in.Timeout == nil {
		in.Timeout = aws.Int32(int32(MaxTimeout / time.Second))
	}
	code, err := iv.code(ctx, d.build)
	if err != nil {
		return err
	}
	in.Code = code
	_, err = iv.client.CreateFunction(ctx, &in)
	if _, exists := errors.AsType[*types.ResourceConflictException](err); exists {
		return nil
	}
	d.created = err == nil
	return classify(err)
}

// configure gives a function the settings wanted, and leaves its other variables. A conflict means that another change
// is under way, after which the deployment looks again.
func (iv *Invoker) configure(
	ctx context.Context, want *lambda.CreateFunctionInput, got *lambda.GetFunctionConfigurationOutput,
) error {
	variables := maps.Clone(variablesOf(got))
	if variables == nil {
		variables = map[string]string{}
	}
	maps.Copy(variables, want.Environment.Variables)
	_, err := iv.client.UpdateFunctionConfiguration(ctx, &lambda.UpdateFunctionConfigurationInput{
		FunctionName: want.FunctionName,
		Role:         want.Role,
		MemorySize:   want.MemorySize,
		Timeout:      want.Timeout,
		Environment:  &types.Environment{Variables: variables},
		Runtime:      want.Runtime,
	})
	return unlessConflict(err)
}

// recode gives a function the code wanted, and its processor.
func (iv *Invoker) recode(ctx context.Context, d *deployment) error {
	code, err := iv.code(ctx, d.build)
	if err != nil {
		return err
	}
	_, err = iv.client.UpdateFunctionCode(ctx, &lambda.UpdateFunctionCodeInput{
		FunctionName: d.want.FunctionName, Architectures: d.want.Architectures,
		ZipFile: code.ZipFile, S3Bucket: code.S3Bucket, S3Key: code.S3Key,
	})
	return unlessConflict(err)
}

// unlessConflict forgets the conflict with another change, which the deployment waits for.
func unlessConflict(err error) error {
	if _, conflict := errors.AsType[*types.ResourceConflictException](err); conflict {
		return nil
	}
	return classify(err)
}

// code returns the zip of a build as a request has it, or where it is in S3.
func (iv *Invoker) code(ctx context.Context, build Build) (*types.FunctionCode, error) {
	archive, err := iv.zips.get(build)
	if err != nil {
		return nil, err
	}
	if iv.opts.Upload != nil {
		bucket, key, err := iv.opts.Upload(ctx, archive)
		if err != nil {
			return nil, err
		}
		return &types.FunctionCode{S3Bucket: &bucket, S3Key: &key}, nil
	}
	if len(archive) > maxUploadBytes {
		return nil, &Problem{
			What: fmt.Sprintf("the zip of %s has %d MB, and a request takes 50", build.Path, len(archive)>>20),
			Hint: "upload it by S3 with --bucket, or build with -ldflags='-s -w', or link less",
		}
	}
	return &types.FunctionCode{ZipFile: archive}, nil
}

// architecture returns AWS's name of a processor.
func architecture(a string) types.Architecture {
	if a == "" {
		a = runtime.GOARCH
	}
	if a == "amd64" {
		return types.ArchitectureX8664
	}
	return types.Architecture(a)
}

var digestPattern = regexp.MustCompile(`^[0-9a-f]{12,64}$`)

func isDigest(s string) bool { return digestPattern.MatchString(s) }

// PlaceOf returns what stands for Options.Place in the names of functions: 8 hexadecimal digits of its SHA-256, and
// nothing where it is empty.
func PlaceOf(place string) string {
	if place == "" {
		return ""
	}
	sum := sha256.Sum256([]byte(place))
	return hex.EncodeToString(sum[:4])
}

// functionNameOf returns <prefix>-<app>-<12 digits of the digest>-<place>-<MB>, without a place that is empty, with an
// app cut to what 64 characters leave and freed of what a function name may not hold.
func functionNameOf(prefix, app, digest, place string, memory int) string {
	tail := "-" + strconv.Itoa(memory)
	if place != "" {
		tail = "-" + place + tail
	}
	tail = "-" + digest[:12] + tail
	app = clean(app)
	return prefix + "-" + app[:min(len(app), 64-len(prefix)-1-len(tail))] + tail
}

// nameBytes are the bytes that a function name may hold.
const nameBytes = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_"

// clean replaces every byte that a function name may not hold by a hyphen.
func clean(s string) string {
	b := []byte(s)
	for i, c := range b {
		if !strings.ContainsRune(nameBytes, rune(c)) {
			b[i] = '-'
		}
	}
	return string(b)
}

// zipKept is for how long a zip is kept after it was last used: it takes tens of megabytes, and a second to make.
const zipKept = time.Minute

// zipCache keeps the zip of the build deployed last for a while: its memory classes need the same one, usually soon
// after each other.
type zipCache struct {
	mu     sync.Mutex
	key    string      // digest and processor of the build
	zip    []byte      // nil when there is none
	ending *time.Timer // drops the zip; nil before the first
}

// get returns the zip of build.
func (z *zipCache) get(build Build) ([]byte, error) {
	z.mu.Lock()
	defer z.mu.Unlock()
	key := build.Digest + " " + string(architecture(build.Architecture))
	if z.zip == nil || z.key != key {
		b, err := zipBinary(build.Path)
		if err != nil {
			return nil, err
		}
		z.key, z.zip = key, b
	}
	if z.ending == nil {
		z.ending = time.AfterFunc(zipKept, z.drop)
	}
	z.ending.Reset(zipKept)
	return z.zip, nil
}

// drop keeps the zip no longer.
func (z *zipCache) drop() {
	z.mu.Lock()
	defer z.mu.Unlock()
	z.zip = nil
}

// zipBinary returns a zip with the binary in path as bootstrap. The same binary always gives the same zip.
func zipBinary(path string) ([]byte, error) {
	binary, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("zip the binary: %w", err)
	}
	defer func() { _ = binary.Close() }()
	header := &zip.FileHeader{
		Name: "bootstrap", Method: zip.Deflate,
		Modified: time.Date(1980, 1, 1, 0, 0, 0, 0, time.UTC),
	}
	header.SetMode(0o755)
	var b bytes.Buffer
	z := zip.NewWriter(&b)
	w, err := z.CreateHeader(header)
	if err == nil {
		_, err = io.Copy(w, binary)
	}
	if err = errors.Join(err, z.Close()); err != nil {
		return nil, fmt.Errorf("zip the binary %s: %w", path, err)
	}
	return b.Bytes(), nil
}
