package lambda_test

import (
	"bytes"
	"cmp"
	"context"
	"debug/elf"
	"encoding/binary"
	"encoding/json"
	"errors"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/spillway-ml/spillway/activities/access"
	"github.com/spillway-ml/spillway/activities/awslambda"
	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/cmd/internal/cli"
	"github.com/spillway-ml/spillway/cmd/internal/cli/clitest"
	"github.com/spillway-ml/spillway/cmd/internal/engine"
	"github.com/spillway-ml/spillway/cmd/internal/web"
	"github.com/spillway-ml/spillway/workers/function"
)

// site is a state directory and a function host that its key opens.
type site struct {
	state, endpoint string
	host            *function.Host
	server          *httptest.Server
}

func newSite(t *testing.T) site {
	t.Helper()
	s := site{state: t.TempDir()}
	keys, err := access.Open(s.state)
	if err != nil {
		t.Fatal(err)
	}
	if s.host, err = function.New(function.Options{Dir: t.TempDir(), Secret: keys.FunctionSecret()}); err != nil {
		t.Fatal(err)
	}
	s.server = httptest.NewServer(s.host)
	t.Cleanup(func() {
		if err := s.host.Close(); err != nil {
			t.Error(err)
		}
		s.server.Close()
	})
	s.endpoint = s.server.URL
	return s
}

// run runs a command at the site, with an answer on standard input and variables.
func (s site) run(
	t *testing.T, ctx context.Context, wantCode int, answer string, args ...string, //nolint:revive // t first
) (stdout, stderr string) {
	t.Helper()
	deps := cli.Deps{
		Stdin: strings.NewReader(answer),
		Environment: func(name string) (string, bool) {
			return map[string]string{"SPILLWAY_LAMBDA_ROLE": role}[name], name == "SPILLWAY_LAMBDA_ROLE"
		},
	}
	args = append([]string{"lambda"}, args...)
	code, stdout, stderr := clitest.Execute(t, ctx, deps, append(args, "--state", s.state, "--endpoint", s.endpoint)...)
	if code != wantCode {
		t.Fatalf("%q: got exit %d, want %d:\n%s%s", args, code, wantCode, stdout, stderr)
	}
	return stdout, stderr
}

const role = "arn:aws:iam::123456789012:role/spillway-function"

// deployed runs a deployment and reads what it says.
func (s site) deployed(t *testing.T, args ...string) []awslambda.Deployed {
	t.Helper()
	stdout, _ := s.run(t, t.Context(), cli.ExitOK, "", append([]string{"deploy", "--json"}, args...)...)
	var all []awslambda.Deployed
	if err := json.Unmarshal([]byte(stdout), &all); err != nil {
		t.Fatalf("%v in %s", err, stdout)
	}
	return all
}

func (s site) names() (names []string) {
	for _, stats := range s.host.Stats() {
		names = append(names, stats.Function)
	}
	return names
}

func TestAnAppIsDeployedInItsClassesAndThenUnchanged(t *testing.T) {
	t.Parallel()
	s, app := newSite(t), clitest.Script(t, "classify")
	first := s.deployed(t, app, "--timeout", "2m", "--concurrency", "3", "--memory", "1769MiB,512MiB")
	if len(first) != 2 || first[0].Memory != 512 || first[1].Memory != 1769 {
		t.Fatalf("got %+v, want a function of 512 and one of 1,769 MB", first)
	}
	for _, one := range first {
		if one.Change != awslambda.Created || one.App != "classify" || one.Role != role || one.Timeout != 2*time.Minute ||
			one.Reserved == nil || *one.Reserved != 3 || one.State != "Active" || one.CodeBytes == 0 ||
			!strings.HasPrefix(one.Name, "spillway-classify-"+one.Build+"-") {
			t.Errorf("got %+v", one)
		}
	}
	for _, again := range s.deployed(t, app, "--memory", "512MiB,1769MiB") {
		if again.Change != awslambda.Unchanged || again.Timeout != 2*time.Minute {
			t.Errorf("again: got %+v, want it unchanged", again)
		}
	}
	stdout, stderr := s.run(t, t.Context(), cli.ExitOK, "", "deploy", app)
	clitest.Contains(t, "table", stdout, "FUNCTION", "PROCESSOR", "unchanged", "created", "10240 MiB",
		"TIMEOUT", "RESERVED", "15m0s", "2m0s",
		"8 functions at "+s.endpoint+", with the role "+role+"\n")
	clitest.Contains(t, "progress", stderr, " unchanged (1 of 8)", " created (8 of 8)")
	if got := len(s.names()); got != len(awslambda.Classes()) {
		t.Errorf("got %d functions, want one of each class", got)
	}
}

func TestADeploymentIsForTheArtifactsOfItsEngine(t *testing.T) {
	t.Parallel()
	s, app := newSite(t), clitest.Script(t, "classify")
	const one, other = "s3://bucket/one", "s3://bucket/other"
	inFiles := s.deployed(t, app, "--memory", "512MiB")[0]
	first := s.deployed(t, app, "--memory", "512MiB", "--artifacts", one+"?region=eu-west-1")[0]
	second := s.deployed(t, app, "--memory", "512MiB", "--artifacts", other)[0]
	for _, got := range []awslambda.Deployed{inFiles, first, second} {
		if got.Change != awslambda.Created {
			t.Errorf("got %s %s, want a function of its own", got.Name, got.Change)
		}
	}
	if want := awslambda.PlaceOf(one); first.Place != want || !strings.HasSuffix(first.Name, "-"+want+"-512") {
		t.Errorf("got %s of %q, want the place %s in its name", first.Name, first.Place, want)
	}
	// What an engine has noted in the state directory needs no flag.
	if err := os.WriteFile(filepath.Join(s.state, "artifacts.json"),
		[]byte(`{"id":"a","location":"`+other+`?sse=AES256"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	again := s.deployed(t, app, "--memory", "512MiB")[0]
	if again.Name != second.Name || again.Change != awslambda.Unchanged {
		t.Errorf("got %s %s, want %s unchanged", again.Name, again.Change, second.Name)
	}
	_, stderr := s.run(t, t.Context(), cli.ExitUsage, "", "deploy", app, "--artifacts", "ftp://a")
	clitest.Contains(t, "no location", stderr, "write files, or s3://")
}

func TestWhatIsDeployedIsListedAndRemoved(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	stdout, _ := s.run(t, t.Context(), cli.ExitOK, "", "list")
	clitest.Contains(t, "no functions", stdout, "no functions at "+s.endpoint)
	old := s.deployed(t, clitest.Script(t, "old"), "--memory", "512MiB,1024MiB")
	served := s.deployed(t, clitest.Script(t, "served"), "--memory", "512MiB")

	stdout, _ = s.run(t, t.Context(), cli.ExitOK, "", "list")
	clitest.Contains(t, "list without an engine", stdout, old[0].Name, served[0].Name, "unknown", "3 functions at ")
	_, stderr := s.run(t, t.Context(), cli.ExitUsage, "", "remove", "--unused", "--yes")
	clitest.Contains(t, "unused without an engine", stderr, "no engine runs on the state directory")

	stack := clitest.StartStack(t, s.state, web.App{
		App: wire.App{Name: "served", Pipelines: []wire.Pipeline{{Name: "served"}}}, Build: served[0].Build, Current: true,
	})
	var listed []struct {
		Function string `json:"function"`
		InUse    string `json:"in_use"`
	}
	inUse := func() map[string]string {
		stdout, _ := s.run(t, t.Context(), cli.ExitOK, "", "list", "--json")
		if err := json.Unmarshal([]byte(stdout), &listed); err != nil {
			t.Fatalf("%v in %s", err, stdout)
		}
		found := map[string]string{}
		for _, one := range listed {
			found[one.Function] = one.InUse
		}
		return found
	}
	place, err := engine.FunctionPlace(s.state, engine.InFiles) // the endpoint is not the engine's own host
	if err != nil {
		t.Fatal(err)
	}
	stack.SetFunctionBuilds(place, served[0].Build)
	if got := inUse(); got[served[0].Name] != "unknown" {
		t.Errorf("an engine that spills elsewhere: got %v", got)
	}
	_, stderr = s.run(t, t.Context(), cli.ExitUsage, "", "remove", "--unused", "--yes")
	clitest.Contains(t, "unused of an engine that spills elsewhere", stderr, "does not spill to "+s.endpoint, "hint: ")
	stack.SetFunctionsAddress(s.endpoint)
	if got := inUse(); got[served[0].Name] != "yes" || got[old[0].Name] != "no" || len(got) != 3 {
		t.Errorf("an engine that spills here: got %v", got)
	}

	_, stderr = s.run(t, t.Context(), cli.ExitUsage, "", "remove", served[0].Name, "--yes")
	clitest.Contains(t, "in use", stderr, "the engine that runs uses "+served[0].Name, "--force")
	_, stderr = s.run(t, t.Context(), cli.ExitUsage, "", "remove", "--all", "--yes")
	clitest.Contains(t, "all, some of which are in use", stderr, "--unused")
	_, stderr = s.run(t, t.Context(), cli.ExitUsage, "", "remove", strings.Replace(old[0].Name, "512", "513", 1), "--yes")
	clitest.Contains(t, "a name that is not there", stderr, "there is no function", "did you mean "+old[0].Name)
	stdout, stderr = s.run(t, t.Context(), cli.ExitUsage, "n\n", "remove", "--unused")
	clitest.Contains(t, "not confirmed", stdout+stderr, old[0].Name, "remove 2 functions at "+s.endpoint+"? [y/N]",
		"not confirmed, nothing is removed")
	if got := len(s.names()); got != 3 {
		t.Fatalf("after refusals: got %d functions, want 3", got)
	}

	stdout, _ = s.run(t, t.Context(), cli.ExitOK, "yes\n", "remove", old[0].Name)
	clitest.Contains(t, "confirmed", stdout, "removed "+old[0].Name)
	stdout, _ = s.run(t, t.Context(), cli.ExitOK, "", "remove", "--unused", "--yes", "--json")
	clitest.Contains(t, "unused", stdout, `"removed": [`, old[1].Name)
	stdout, _ = s.run(t, t.Context(), cli.ExitOK, "", "remove", "--unused", "--yes")
	clitest.Contains(t, "nothing left", stdout, "nothing to remove")
	s.run(t, t.Context(), cli.ExitOK, "", "remove", "--all", "--yes", "--force")
	if got := s.names(); len(got) != 0 {
		t.Errorf("after all were removed: got %q", got)
	}
}

// TestFunctionsThatAnEngineMayCallAreNotUnused has functions of a build that is served, of an old one whose runs go on,
// of the program that runs commands, of another engine, and of nobody.
func TestFunctionsThatAnEngineMayCallAreNotUnused(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	const ours = "s3://bucket/ours"
	deploy := func(name, artifacts string) awslambda.Deployed {
		return s.deployed(t, clitest.Script(t, name), "--memory", "512MiB", "--artifacts", artifacts)[0]
	}
	served, old, commands := deploy("served", ours), deploy("old", ours), deploy("commands", ours)
	nobodys := deploy("nobodys", ours)
	another, before := deploy("nobodys", "s3://bucket/another"), deploy("nobodys", "files")
	stack := clitest.StartStack(t, s.state, web.App{App: wire.App{Name: "served"}, Build: served.Build, Current: true})
	stack.SetFunctionsAddress(s.endpoint + "/")
	inUse := func() map[string]string {
		stdout, _ := s.run(t, t.Context(), cli.ExitOK, "", "list", "--json")
		var listed []struct {
			Function string `json:"function"`
			InUse    string `json:"in_use"`
		}
		if err := json.Unmarshal([]byte(stdout), &listed); err != nil {
			t.Fatalf("%v in %s", err, stdout)
		}
		found := map[string]string{}
		for _, one := range listed {
			found[one.Function] = one.InUse
		}
		return found
	}

	stack.SetFunctionBuilds(ours) // it does not know yet which runs go on
	for name, got := range inUse() {
		if want := map[string]string{served.Name: "yes"}[name]; got != cmp.Or(want, "unknown") {
			t.Errorf("an engine that has just started: %s is %s", name, got)
		}
	}
	_, stderr := s.run(t, t.Context(), cli.ExitUsage, "", "remove", "--unused", "--yes")
	clitest.Contains(t, "unused where that is not known", stderr, "has only just started", "try again")

	stack.SetFunctionBuilds(ours, served.Build, old.Build, commands.Build)
	want := map[string]string{
		served.Name: "yes", old.Name: "yes", commands.Name: "yes",
		nobodys.Name: "no", another.Name: "unknown", before.Name: "unknown",
	}
	if got := inUse(); !maps.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	s.run(t, t.Context(), cli.ExitOK, "", "remove", "--unused", "--yes")
	delete(want, nobodys.Name)
	if got := inUse(); !maps.Equal(got, want) {
		t.Errorf("after unused ones were removed: got %v, want %v", got, want)
	}
	_, stderr = s.run(t, t.Context(), cli.ExitUsage, "", "remove", commands.Name, "--yes")
	clitest.Contains(t, "in use", stderr, "the engine that runs uses "+commands.Name)
}

func TestTheHostOfTheStackIsNamedLocal(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	_, stderr := site{state: s.state, endpoint: "local"}.run(t, t.Context(), cli.ExitFailure, "", "list")
	clitest.Contains(t, "no stack", stderr, "no stack runs")
	stack := clitest.StartStack(t, s.state)
	_, stderr = site{state: s.state, endpoint: "local"}.run(t, t.Context(), cli.ExitFailure, "", "list")
	clitest.Contains(t, "no functions", stderr, "the stack that runs has no functions")
	stack.SetFunctionsAddress(s.endpoint)
	stdout, _ := site{state: s.state, endpoint: "local"}.run(t, t.Context(), cli.ExitOK, "", "list")
	clitest.Contains(t, "the host", stdout, "no functions at "+s.endpoint)
}

// program writes the head of a program for another processor than this machine's.
func program(t *testing.T) (path, arch string) {
	t.Helper()
	machine, arch := elf.EM_AARCH64, "arm64"
	if runtime.GOARCH == arch {
		machine, arch = elf.EM_X86_64, "amd64"
	}
	head := elf.Header64{Type: uint16(elf.ET_EXEC), Machine: uint16(machine), Version: 1, Ehsize: 64}
	copy(head.Ident[:], elf.ELFMAG)
	head.Ident[elf.EI_CLASS], head.Ident[elf.EI_DATA], head.Ident[elf.EI_VERSION] = 2, 1, 1
	var text bytes.Buffer
	path = filepath.Join(t.TempDir(), "program")
	if err := errors.Join(binary.Write(&text, binary.LittleEndian, head),
		os.WriteFile(path, text.Bytes(), 0o700)); err != nil {
		t.Fatal(err)
	}
	return path, arch
}

func TestADeploymentThatCannotWorkIsRefusedAtTheDoor(t *testing.T) {
	t.Parallel()
	s, app := newSite(t), clitest.Script(t, "classify")
	foreign, arch := program(t)
	for name, tt := range map[string]struct {
		args  []string
		wants []string
	}{
		"no app":               {[]string{"deploy"}, []string{"it needs DIR or BINARY"}},
		"an app that is not":   {[]string{"deploy", "nowhere"}, []string{"nowhere: no such file or directory"}},
		"no role":              {[]string{"deploy", app, "--role", "admin"}, []string{"--role admin: it is no ARN"}},
		"no processor":         {[]string{"deploy", app, "--arch", "mips"}, []string{"--arch mips", "amd64"}},
		"memory of no class":   {[]string{"deploy", app, "--memory", "2GiB"}, []string{"--memory 2GiB", "1769MiB"}},
		"memory of no unit":    {[]string{"deploy", app, "--memory", "512"}, []string{"--memory 512", "512MiB"}},
		"a timeout of parts":   {[]string{"deploy", app, "--timeout", "1500ms"}, []string{"whole seconds"}},
		"a timeout too long":   {[]string{"deploy", app, "--timeout", "16m"}, []string{"15 minutes of them at most"}},
		"a region that is not": {[]string{"list", "--region", "Frankfurt"}, []string{`"Frankfurt" is no region`}},
		"a profile that is not": {
			[]string{"list", "--profile", "nobody"}, []string{`there is no profile "nobody"`, "~/.aws/config"},
		},
		"a program of another machine": {
			[]string{"deploy", foreign},
			[]string{"is for " + arch + " and this machine has " + runtime.GOARCH, "--arch " + arch},
		},
		"a program for another function": {
			[]string{"deploy", foreign, "--arch", runtime.GOARCH},
			[]string{"is for " + arch + ", and the function for " + runtime.GOARCH},
		},
		"nothing to remove":      {[]string{"remove"}, []string{"it needs the names of functions, --all or --unused"}},
		"all and some to remove": {[]string{"remove", "a", "--all"}, []string{"names and --all exclude each other"}},
		"JSON that would ask":    {[]string{"remove", "--all", "--json"}, []string{"--json asks nobody"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			stdout, stderr := s.run(t, t.Context(), cli.ExitUsage, "", tt.args...)
			clitest.Contains(t, "error", stderr, append(tt.wants, "hint: ")...)
			if stdout != "" {
				t.Errorf("standard output has %q", stdout)
			}
		})
	}
}

func TestWithoutCredentialsNothingIsCalled(t *testing.T) {
	t.Parallel()
	s := site{state: t.TempDir(), endpoint: "https://lambda.example.com"}
	_, stderr := s.run(t, t.Context(), cli.ExitUsage, "", "list")
	clitest.Contains(t, "error", stderr, "there are no AWS credentials that work", "AWS_ACCESS_KEY_ID")
	empty := t.TempDir()
	_, stderr = s.run(t, t.Context(), cli.ExitUsage, "", "deploy", empty)
	clitest.Contains(t, "no program", stderr, empty)
	if strings.Contains(stderr, "credentials") {
		t.Errorf("what is no program is refused for its credentials: %s", stderr)
	}
	_, stderr = s.run(t, t.Context(), cli.ExitUsage, "", "deploy", clitest.Script(t, "classify"))
	clitest.Contains(t, "artifacts in files", stderr, "artifacts are in files of this machine", "give --artifacts s3://")
}

func TestWhatTheLocalHostCannotDoIsRefusedBeforeItIsAsked(t *testing.T) {
	t.Parallel()
	s, other := site{state: t.TempDir(), endpoint: "local"}, "arm64"
	if runtime.GOARCH == other {
		other = "amd64"
	}
	for want, args := range map[string][]string{
		"--bucket is not for --endpoint local": {"--bucket", "my-bucket"},
		"the local function host runs on this": {"--arch", other},
	} {
		_, stderr := s.run(t, t.Context(), cli.ExitUsage, "", append([]string{"deploy", t.TempDir()}, args...)...)
		clitest.Contains(t, "error", stderr, want, "hint: ")
	}
}

func TestWhatTheHostRefusesIsToldWithHowFarItCame(t *testing.T) {
	t.Parallel()
	s, app := newSite(t), clitest.Script(t, "classify")
	stdout, stderr := s.run(t, t.Context(), cli.ExitFailure, "", "deploy", app, "--memory", "512MiB,1024MiB",
		"--concurrency", "500")
	clitest.Contains(t, "error", stderr, "1 of 2 functions deployed: function spillway-classify-", "Service Quotas",
		"the account has not so much concurrency to reserve")
	clitest.Contains(t, "what was done", stdout, "created", "512 MiB")
	if strings.Contains(stdout, "1024 MiB") {
		t.Errorf("what was not done is told as done:\n%s", stdout)
	}
	s.run(t, t.Context(), cli.ExitOK, "", "deploy", app, "--memory", "512MiB,1024MiB", "--concurrency", "400")
}

func TestAnInterruptedDeploymentTellsHowFarItCame(t *testing.T) {
	t.Parallel()
	s, app := newSite(t), clitest.Script(t, "classify")
	ctx, interrupt := context.WithCancel(t.Context())
	handler := s.server.Config.Handler
	s.server.Config.Handler = interruptAfter(handler, interrupt)
	stdout, stderr := s.run(t, ctx, cli.ExitFailure, "", "deploy", app)
	clitest.Contains(t, "error", stderr, "interrupted: 2 of 8 functions deployed", "the same command goes on from there")
	clitest.Contains(t, "what was done", stdout, "2 functions at")
	stdout, _ = s.run(t, t.Context(), cli.ExitOK, "", "deploy", app)
	clitest.Contains(t, "again", stdout, "8 functions at", "unchanged", "created")
}

// interruptAfter interrupts when the third function is about to be created.
func interruptAfter(next http.Handler, interrupt func()) http.Handler {
	var created atomic.Int32
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost && strings.HasSuffix(r.URL.Path, "/functions") && created.Add(1) == 3 {
			interrupt()
		}
		next.ServeHTTP(w, r)
	})
}
