package awslambda_test

import (
	"context"
	"crypto/rand"
	"debug/elf"
	"encoding/binary"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/lambda"
	"github.com/aws/aws-sdk-go-v2/service/lambda/types"
	"github.com/aws/smithy-go/middleware"
	"github.com/google/go-cmp/cmp"

	"github.com/spillway-ml/spillway/activities/awslambda"
	"github.com/spillway-ml/spillway/workers/function"
)

// operations records which operations of the API a client calls.
type operations struct {
	mu    sync.Mutex
	names []string
}

// of returns c with its calls recorded.
func (o *operations) of(c *lambda.Client) *lambda.Client {
	record := middleware.InitializeMiddlewareFunc("record", func(
		ctx context.Context, in middleware.InitializeInput, next middleware.InitializeHandler,
	) (middleware.InitializeOutput, middleware.Metadata, error) {
		o.mu.Lock()
		o.names = append(o.names, middleware.GetOperationName(ctx))
		o.mu.Unlock()
		return next.HandleInitialize(ctx, in)
	})
	return lambda.New(c.Options(), lambda.WithAPIOptions(func(s *middleware.Stack) error {
		return s.Initialize.Add(record, middleware.Before)
	}))
}

func (o *operations) take() []string {
	o.mu.Lock()
	defer o.mu.Unlock()
	taken := o.names
	o.names = nil
	return taken
}

// writes are the operations that change something.
func writes(names []string) []string {
	return slices.DeleteFunc(names, func(name string) bool {
		return strings.HasPrefix(name, "Get") || strings.HasPrefix(name, "List")
	})
}

func deploy(t *testing.T, iv *awslambda.Invoker, b awslambda.Build, memory int, reserved *int) awslambda.Deployed {
	t.Helper()
	deployed, err := iv.Deploy(t.Context(), b, memory, reserved)
	if err != nil {
		t.Fatalf("Deploy: %v", err)
	}
	return deployed
}

const otherRole = "arn:aws:iam::000000000000:role/other"

func TestADeploymentIsMadeOnceAndChangedWhereItDiffers(t *testing.T) {
	t.Parallel()
	_, c := host(t, function.Options{})
	var calls operations
	c = calls.of(c)
	b := build(t)
	first := deploy(t, invoker(t, awslambda.Options{Client: c, Role: otherRole, Timeout: time.Minute}), b, 512, aws.Int(7))
	want := awslambda.Deployed{Change: awslambda.Created, Took: first.Took, Function: awslambda.Function{
		Name: "spillway-conformance-" + b.Digest[len("sha256:"):][:12] + "-512", App: "conformance",
		Build: b.Digest[len("sha256:"):], Memory: 512, Architecture: first.Architecture, CodeBytes: first.CodeBytes,
		State: "Active", Modified: first.Modified, Timeout: time.Minute, Role: otherRole, Reserved: aws.Int(7),
	}}
	if diff := cmp.Diff(want, first); diff != "" || first.CodeBytes <= 0 || first.Modified.IsZero() || first.Took <= 0 {
		t.Errorf("created (-want +got):\n%s", diff)
	}
	calls.take()
	for _, tt := range []struct {
		name     string
		options  awslambda.Options
		reserved *int
		change   awslambda.Change
		writes   []string
		timeout  time.Duration
		role     string
	}{
		{
			"the same",
			awslambda.Options{Role: otherRole, Timeout: time.Minute},
			aws.Int(7), awslambda.Unchanged, nil,
			time.Minute, otherRole,
		},
		{"what is left open stays", awslambda.Options{}, nil, awslambda.Unchanged, nil, time.Minute, otherRole},
		{
			"another timeout",
			awslambda.Options{Timeout: time.Hour / 4},
			nil, awslambda.Changed,
			[]string{"UpdateFunctionConfiguration"},
			time.Hour / 4, otherRole,
		},
		{
			"another role",
			awslambda.Options{Role: otherRole + "2"},
			nil, awslambda.Changed,
			[]string{"UpdateFunctionConfiguration"},
			time.Hour / 4, otherRole + "2",
		},
		{
			"other concurrency",
			awslambda.Options{},
			aws.Int(8), awslambda.Changed,
			[]string{"PutFunctionConcurrency"},
			time.Hour / 4, otherRole + "2",
		},
	} {
		tt.options.Client = c
		got := deploy(t, invoker(t, tt.options), b, 512, tt.reserved)
		if made := writes(calls.take()); got.Change != tt.change || !slices.Equal(made, tt.writes) {
			t.Errorf("%s: got %s by %q, want %s by %q", tt.name, got.Change, made, tt.change, tt.writes)
		}
		if got.Timeout != tt.timeout || got.Role != tt.role {
			t.Errorf("%s: got %v and %s, want %v and %s", tt.name, got.Timeout, got.Role, tt.timeout, tt.role)
		}
	}
}

func TestOtherCodeOfTheSameBuildIsReplaced(t *testing.T) {
	t.Parallel()
	_, c := host(t, function.Options{})
	b := build(t)
	deploy(t, invoker(t, awslambda.Options{Client: c}), b, 512, nil)
	other := build(t, []byte("# compiled again\n")...)
	other.Digest = b.Digest
	changed := deploy(t, invoker(t, awslambda.Options{Client: c}), other, 512, nil)
	again := deploy(t, invoker(t, awslambda.Options{Client: c}), other, 512, nil)
	if changed.Change != awslambda.Changed || again.Change != awslambda.Unchanged {
		t.Errorf("got %s, then %s", changed.Change, again.Change)
	}
	iv := invoker(t, awslambda.Options{Client: c})
	if a, _ := invoke(t, iv, changed.Name, order{}); a.FunctionError != "" {
		t.Errorf("the code that replaced it: %s", a.Payload)
	}
}

// TestAFunctionThatWasDeployedIsUsedAsItIs has an Invoker as the engine makes it, without a role.
func TestAFunctionThatWasDeployedIsUsedAsItIs(t *testing.T) {
	t.Parallel()
	_, c := host(t, function.Options{})
	b := build(t)
	by := invoker(t, awslambda.Options{Client: c, Role: otherRole, Timeout: 3 * time.Minute})
	deployed := deploy(t, by, b, 1769, aws.Int(9))
	var calls operations
	engine := invoker(t, awslambda.Options{Client: calls.of(c), Environment: map[string]string{"TEST_VAR": "engine"}})
	if name := ensure(t, engine, b, 1769); name != deployed.Name {
		t.Fatalf("got %s, want %s", name, deployed.Name)
	}
	if made := writes(calls.take()); !slices.Equal(made, []string{"UpdateFunctionConfiguration"}) {
		t.Errorf("the engine calls %q, want that it adds its variable", made)
	}
	if _, out := invoke(t, engine, deployed.Name, order{}); out.Var != "engine" {
		t.Errorf("got variable %q", out.Var)
	}
	again := deploy(t, by, b, 1769, nil)
	if again.Change != awslambda.Unchanged || again.Role != otherRole || again.Timeout != 3*time.Minute ||
		again.Reserved == nil || *again.Reserved != 9 {
		t.Errorf("after the engine's: got %+v, want it unchanged", again)
	}
	if _, out := invoke(t, engine, deployed.Name, order{}); out.Var != "engine" {
		t.Errorf("after both: got variable %q", out.Var)
	}
}

func TestFunctionsOfTwoPlacesInOneAccountKeepTheirVariables(t *testing.T) {
	t.Parallel()
	_, c := host(t, function.Options{})
	b := build(t)
	of := func(place string) *awslambda.Invoker {
		return invoker(t, awslambda.Options{
			Client: c, Place: place, Environment: map[string]string{"SPILLWAY_ARTIFACTS": place},
		})
	}
	const one, other = "s3://bucket/one", "s3://bucket/other"
	first := ensure(t, of(one), b, 512)
	second := ensure(t, of(other), b, 512)
	for _, pair := range [][2]string{{first, one}, {second, other}} {
		name, want := pair[0], pair[1]
		got, err := c.GetFunctionConfiguration(t.Context(), &lambda.GetFunctionConfigurationInput{FunctionName: &name})
		if err != nil {
			t.Fatal(err)
		}
		if held := got.Environment.Variables["SPILLWAY_ARTIFACTS"]; held != want {
			t.Errorf("function %s of %s has the artifacts of %s", name, want, held)
		}
	}
	// `lambda deploy` finds the function of its place too, whoever was first.
	if deployed := deploy(t, of(one), b, 512, nil); deployed.Name != first || deployed.Change != awslambda.Unchanged {
		t.Errorf("deployed again: got %s %s, want %s unchanged", deployed.Name, deployed.Change, first)
	}
	listed, err := invoker(t, awslambda.Options{Client: c}).List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	places := map[string]string{}
	for _, f := range listed {
		places[f.Name] = f.Place
	}
	want := map[string]string{first: awslambda.PlaceOf(one), second: awslambda.PlaceOf(other)}
	if diff := cmp.Diff(want, places); diff != "" {
		t.Errorf("places that are listed (-want +got):\n%s", diff)
	}
	if name := ensure(t, of(""), b, 512); name == first || name == second {
		t.Errorf("without a place: got the function %s of one", name)
	}
}

func TestFunctionsAreListedOverPagesAndRemoved(t *testing.T) {
	t.Parallel()
	h, c := host(t, function.Options{})
	iv := invoker(t, awslambda.Options{Client: c})
	b := build(t)
	var want []string
	for _, memory := range []int{512, 1024} {
		want = append(want, deploy(t, iv, b, memory, nil).Name)
	}
	deploy(t, invoker(t, awslambda.Options{Client: c, Prefix: "other"}), b, 512, nil)
	for i := range 51 { // more than a page of what is not ours, before and after it
		name := string(rune('a'+i%26)) + "-foreign-" + string(rune('a'+i/26))
		if i == 50 {
			name = "spillway-foreign-" + b.Digest[len("sha256:"):][:12] + "-512" // whose description is not ours
		}
		if _, err := c.CreateFunction(t.Context(), &lambda.CreateFunctionInput{
			FunctionName: &name, Role: aws.String(otherRole), Runtime: "provided.al2023", Handler: aws.String("bootstrap"),
			Code: &types.FunctionCode{ZipFile: bootstrapZip(t)},
		}); err != nil {
			t.Fatal(err)
		}
	}
	list := func() (names []string) {
		functions, err := iv.List(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range functions {
			names = append(names, f.Name)
			if f.App != "conformance" || f.Build != b.Digest[len("sha256:"):] || f.Modified.IsZero() || f.CodeBytes == 0 {
				t.Errorf("got %+v", f)
			}
		}
		return names
	}
	if got := list(); !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	for range 2 { // the second time it is gone
		if err := iv.Remove(t.Context(), want[0]); err != nil {
			t.Error(err)
		}
	}
	if got := list(); !slices.Equal(got, want[1:]) {
		t.Errorf("after one was removed: got %q, want %q", got, want[1:])
	}
	if got := len(h.Stats()); got != 53 {
		t.Errorf("got %d functions, want 53: only that one was removed", got)
	}
}

func TestAnInterruptedDeploymentGoesOn(t *testing.T) {
	t.Parallel()
	_, c := host(t, function.Options{})
	ctx, cancel := context.WithCancel(t.Context())
	interrupting := lambda.New(c.Options(), func(o *lambda.Options) {
		o.HTTPClient = &http.Client{Transport: transport(func(r *http.Request) (*http.Response, error) {
			answer, err := http.DefaultTransport.RoundTrip(r)
			if r.Method == http.MethodPost {
				cancel() // when the function has just been created
			}
			return answer, err
		})}
	})
	b := build(t)
	if _, err := invoker(t, awslambda.Options{Client: interrupting}).Deploy(ctx, b, 512, aws.Int(5)); !errors.Is(err,
		context.Canceled) {
		t.Fatalf("got %v, want that it was interrupted", err)
	}
	got := deploy(t, invoker(t, awslambda.Options{Client: c}), b, 512, aws.Int(5))
	if got.Change != awslambda.Changed || got.Reserved == nil || *got.Reserved != 5 {
		t.Errorf("again: got %+v, want what was missing", got)
	}
	http.DefaultTransport.(*http.Transport).CloseIdleConnections()
}

func TestAZipThatIsTooLargeForARequestGoesByS3(t *testing.T) {
	t.Parallel()
	stored := map[string][]byte{}
	_, c := host(t, function.Options{S3: func(_ context.Context, bucket, key string) ([]byte, error) {
		archive, there := stored[bucket+"/"+key]
		if !there {
			return nil, errors.New("S3 Error Code: NoSuchKey. S3 Error Message: The specified key does not exist")
		}
		return archive, nil
	}})
	noise := make([]byte, 51<<20)
	_, _ = rand.Read(noise) // never fails
	b := build(t, noise...)
	_, err := invoker(t, awslambda.Options{Client: c}).Deploy(t.Context(), b, 512, nil)
	named(t, err, "and a request takes 50", "--bucket")

	upload := func(_ context.Context, archive []byte) (bucket, key string, err error) {
		stored["code/a.zip"] = archive
		return "code", "a.zip", nil
	}
	iv := invoker(t, awslambda.Options{Client: c, Upload: upload})
	if deployed := deploy(t, iv, b, 512, nil); deployed.Change != awslambda.Created || deployed.CodeBytes < 51<<20 {
		t.Errorf("got %+v", deployed)
	}
	lost := func(context.Context, []byte) (bucket, key string, err error) { return "code", "lost.zip", nil }
	_, err = invoker(t, awslambda.Options{Client: c, Upload: lost}).Deploy(t.Context(), build(t), 1024, nil)
	named(t, err, "Lambda cannot read the zip in the bucket", "s3:GetObject")
}

// program writes the head of an ELF program for a processor.
func program(t *testing.T, machine elf.Machine) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "program")
	head := elf.Header64{Type: uint16(elf.ET_EXEC), Machine: uint16(machine), Version: 1, Ehsize: 64}
	copy(head.Ident[:], elf.ELFMAG)
	head.Ident[elf.EI_CLASS], head.Ident[elf.EI_DATA], head.Ident[elf.EI_VERSION] = 2, 1, 1
	file, err := os.Create(path)
	if err == nil {
		err = errors.Join(binary.Write(file, binary.LittleEndian, head), file.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
	return path
}

func TestAProgramThatNoFunctionRunsIsRefused(t *testing.T) {
	t.Parallel()
	text := filepath.Join(t.TempDir(), "text")
	large := filepath.Join(t.TempDir(), "large")
	if err := errors.Join(os.WriteFile(text, []byte("no program"), 0o700), os.WriteFile(large, nil, 0o700),
		os.Truncate(large, 250<<20+1)); err != nil {
		t.Fatal(err)
	}
	for name, tt := range map[string]struct{ path, arch, says, hint string }{
		"another processor": {
			program(t, elf.EM_AARCH64), "amd64", "is for arm64, and the function for amd64", "--arch arm64",
		},
		"no processor of functions": {program(t, elf.EM_RISCV), "", "EM_RISCV", "GOARCH=arm64"},
		"no program":                {text, "", "is no program for Linux", "GOOS=linux"},
		"too large":                 {large, "", "has 250 MB, and a function holds 250", "-ldflags"},
	} {
		_, err := awslambda.CheckProgram(tt.path, tt.arch)
		t.Run(name, func(t *testing.T) { named(t, err, tt.says, tt.hint) })
	}
	for want, machine := range map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64} {
		if got, err := awslambda.CheckProgram(program(t, machine), ""); got != want || err != nil {
			t.Errorf("got %q, %v, want %s", got, err, want)
		}
	}
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := awslambda.CheckProgram(exe, ""); err != nil {
		t.Errorf("this program: %v", err)
	}
}
