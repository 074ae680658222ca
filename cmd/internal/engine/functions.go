package engine

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync"

	"github.com/aws/aws-sdk-go-v2/aws"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/lambda"

	"github.com/spillway-ml/spillway/activities"
	"github.com/spillway-ml/spillway/activities/access"
	"github.com/spillway-ml/spillway/activities/awslambda"
	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/workers/function"
)

// endpointVariable is where the AWS SDK finds another endpoint of Lambda. When it is set, no local host is started.
const endpointVariable = "AWS_ENDPOINT_URL_LAMBDA"

// RoleVariable names the IAM role that functions run as on AWS.
const RoleVariable = "SPILLWAY_LAMBDA_ROLE"

// openFunctions returns the functions to spill to and fills in what their venue offers.
func (v *venues) openFunctions(ctx context.Context) (activities.Functions, error) {
	config := v.config.Functions
	v.functions = predictor.FunctionVenue{
		Enabled: true, Concurrency: config.Concurrency, MaxDuration: awslambda.MaxTimeout, ColdStart: config.ColdStart,
		PerGiBSecond: config.PerGiBSecond, PerRequest: config.PerRequest,
	}
	for _, megabytes := range awslambda.Classes() {
		v.functions.Classes = append(v.functions.Classes, quantity.Bytes(megabytes)*quantity.MiB)
	}
	v.functions.MaxMemory = v.functions.Classes[len(v.functions.Classes)-1]

	elsewhere := os.Getenv(endpointVariable)
	if err := mayReach(elsewhere, v.store.location); err != nil {
		return nil, err
	}
	if elsewhere != "" || v.store.location != InFiles { // else it is the host of this engine, which has no others
		place, err := FunctionPlace(v.config.StateDir, v.store.location)
		if err != nil {
			return nil, err
		}
		v.place = place
	}
	options := awslambda.Options{
		Place: v.place, Role: os.Getenv(RoleVariable), Logger: v.logger,
		Environment: map[string]string{wire.ArtifactsEnvironment: v.store.remote},
	}
	if elsewhere == "" {
		endpoint, err := v.startFunctionHost(ctx)
		if err != nil {
			return nil, err
		}
		options.Environment[wire.ArtifactsEnvironment] = v.store.local
		options.Environment[wire.ServerEnvironment] = v.store.server
		options.Client = localClient(endpoint, v.servers.own.Keys().FunctionSecret())
		v.functions.Cores = quantity.Milli(len(config.CPUs)) * quantity.Core
	}
	invoker, err := awslambda.New(ctx, options)
	if err != nil {
		return nil, err
	}
	v.addresses.Functions = invoker.Endpoint()
	functions := lambdaFunctions{invoker: invoker, builds: v.builds}
	if functions.runner, err = findRunner(v.config.Functions.Runner); err != nil {
		v.functions.NoCommands = err.Error()
		v.logger.InfoContext(ctx, "commands run at the pool only", "reason", err)
	}
	v.runner = functions.runner
	functions.python = sync.OnceValue(v.pythonRuntime)
	return functions, nil
}

// mayReach refuses a host of functions, by its URL, on another machine where artifacts are files of this one: functions
// would find none. An empty URL is the function host of this engine.
func mayReach(endpoint, artifacts string) error {
	if artifacts != InFiles || endpoint == "" || awslambda.IsLoopback(endpoint) {
		return nil
	}
	return fmt.Errorf("functions would run at %s (%s), and artifacts are in files of this machine, which they do not "+
		"reach: keep artifacts in S3 with --artifacts s3://BUCKET/PREFIX, leave functions out with --no-burst, or unset %s",
		endpoint, endpointVariable, endpointVariable)
}

// localClient calls the local function host. It signs as every client of AWS does, and the digest of the body as a
// header too, so that the host knows it before the body.
func localClient(endpoint, secret string) *lambda.Client {
	return lambda.New(lambda.Options{
		BaseEndpoint: &endpoint, Region: "us-east-1", Retryer: aws.NopRetryer{},
		Credentials: credentials.NewStaticCredentialsProvider(function.AccessKeyID, secret, ""),
	}, lambda.WithAPIOptions(v4.AddContentSHA256HeaderMiddleware))
}

// startFunctionHost serves the Lambda API on this machine and returns its URL.
func (v *venues) startFunctionHost(ctx context.Context) (string, error) {
	host, err := function.New(function.Options{
		Dir: filepath.Join(v.config.StateDir, "functions"), Secret: v.servers.own.Keys().FunctionSecret(),
		Concurrency: v.config.Functions.Concurrency,
		ColdStart:   v.config.Functions.ColdStart, CPUs: v.config.Functions.CPUs, Enforcement: v.config.Limits,
		User: v.config.StageUser, Logger: v.logger,
	})
	if err != nil {
		return "", err
	}
	v.local = host
	v.onClose("the local function host", func(context.Context) error { return host.Close() })
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return "", fmt.Errorf("listen for the local function host: %w", err)
	}
	server := access.NewServer(host, v.logger)
	v.working.Go(func() {
		if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			v.fail(fmt.Errorf("serve the local function host: %w", err))
		}
	})
	v.onClose("the port of the local function host", func(context.Context) error { return server.Close() })
	return "http://" + listener.Addr().String(), nil
}

// lambdaFunctions is AWS Lambda as the spill worker sees it.
type lambdaFunctions struct {
	invoker *awslambda.Invoker
	builds  activities.Builds
	runner  runner
	python  func() string // the runtime of functions whose commands are in Python
}

// EnsureCommands deploys what runs commands. All of one language share their functions, so that one is warm for the
// next.
func (l lambdaFunctions) EnsureCommands(
	ctx context.Context, program string, memory quantity.Bytes,
) (string, error) {
	build := awslambda.Build{App: "commands", Digest: l.runner.digest, Path: l.runner.path}
	if isPython(program) {
		build.Runtime = l.python()
		build.App += "-" + build.Runtime
	}
	return l.invoker.Ensure(ctx, build, int(memory/quantity.MiB))
}

// Ensure deploys the build.
func (l lambdaFunctions) Ensure(ctx context.Context, app, build string, memory quantity.Bytes) (string, error) {
	path, err := l.builds.Path(ctx, app, build)
	if err != nil {
		return "", err
	}
	return l.invoker.Ensure(ctx, awslambda.Build{App: app, Digest: build, Path: path}, int(memory/quantity.MiB))
}

// Invoke calls the function.
func (l lambdaFunctions) Invoke(ctx context.Context, name string, payload []byte) (activities.FunctionAnswer, error) {
	answer, err := l.invoker.Invoke(ctx, name, payload)
	switch {
	case errors.Is(err, awslambda.ErrThrottled):
		return activities.FunctionAnswer{}, fmt.Errorf("%w: %w", activities.ErrThrottled, err)
	case errors.Is(err, awslambda.ErrTooLarge):
		return activities.FunctionAnswer{}, fmt.Errorf("%w: %w", activities.ErrTooLarge, err)
	case err != nil:
		return activities.FunctionAnswer{}, err
	}
	return activities.FunctionAnswer{
		Payload: answer.Payload, Error: answer.FunctionError, Log: answer.LogTail,
		ErrorType: answer.Report.ErrorType,
		Init:      answer.Report.InitDuration, Duration: answer.Report.Duration, Billed: answer.Report.BilledDuration,
		Memory:     quantity.Bytes(answer.Report.MemorySizeMB) * quantity.MiB,
		PeakMemory: quantity.Bytes(answer.Report.MaxMemoryMB) * quantity.MiB,
	}, nil
}
