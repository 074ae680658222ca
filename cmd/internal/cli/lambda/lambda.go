// Package lambda has the command lambda, which deploys builds as AWS Lambda functions, lists and removes them.
package lambda

import (
	"context"
	"errors"
	"io/fs"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/spillway-ml/spillway/activities/access"
	"github.com/spillway-ml/spillway/activities/awslambda"
	"github.com/spillway-ml/spillway/cmd/internal/cli/fault"
	"github.com/spillway-ml/spillway/cmd/internal/cli/flag"
	"github.com/spillway-ml/spillway/cmd/internal/cli/session"
	"github.com/spillway-ml/spillway/cmd/internal/cli/tool"
	"github.com/spillway-ml/spillway/workers/function"
)

// Commands are the commands of this package.
func Commands(t *tool.Tool) []*cobra.Command {
	command := &cobra.Command{
		Use:   "lambda COMMAND",
		Short: "Deploy builds as AWS Lambda functions, list and remove them",
		Long: `Deploy builds as AWS Lambda functions, list and remove them. An engine deploys by itself what it
spills to; a build that is deployed beforehand has no task wait for that, and has the role, the
timeout and the reserved concurrency that it was deployed with. There is one function for each build
and memory class, named spillway-APP-BUILD-MEMORY and tagged spillway:app and spillway:build; where
artifacts are in S3, spillway-APP-BUILD-PLACE-MEMORY, with a PLACE for each place of artifacts.

An engine spills to AWS where AWS_ENDPOINT_URL_LAMBDA is set, such as to
https://lambda.eu-central-1.amazonaws.com, and to its own function host otherwise. Credentials,
profile and region are those of AWS's own tools: AWS_ACCESS_KEY_ID, AWS_PROFILE, AWS_REGION,
~/.aws/config. What rights they need is in deploy/aws/template.yaml.

With --endpoint the commands speak to another host of the API, and with "--endpoint local" to the
function host of the stack that runs on the state directory.`,
		Example: `  spillway lambda deploy ./myapp --role arn:aws:iam::123456789012:role/spillway-function
  spillway lambda list --region eu-central-1
  spillway lambda remove --unused`,
		Args: flag.UnknownVerb,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	command.AddCommand(deployCommand(t), listCommand(t), removeCommand(t))
	return []*cobra.Command{command}
}

// place is where the functions are: the flags of all commands of this package.
type place struct {
	where  awslambda.Where
	asJSON bool
}

func (p *place) add(set *pflag.FlagSet) {
	set.StringVar(&p.where.Endpoint, "endpoint", "",
		"`URL` of another host of the Lambda API; local is the function host of the stack that runs")
	set.StringVar(&p.where.Region, "region", "", "`REGION` of AWS (default the configured one, else us-east-1)")
	set.StringVar(&p.where.Profile, "profile", "", "`PROFILE` of ~/.aws/config (default AWS_PROFILE)")
	set.BoolVar(&p.asJSON, "json", false, "print everything as JSON; the units are in the names")
}

// localEndpoint is the word for the function host of the stack that runs.
const localEndpoint = "local"

// invoker connects to the place, and to the bucket where there is one.
func (p *place) invoker(
	ctx context.Context, t *tool.Tool, options awslambda.Options, bucket string,
) (*awslambda.Invoker, error) {
	where := p.where
	if where.Endpoint == localEndpoint {
		s, err := session.Connect(ctx, t)
		if err != nil {
			return nil, err
		}
		s.Client.Close()
		if where.Endpoint = s.Stack.Addresses.Functions; where.Endpoint == "" {
			return nil, fault.Advise(errors.New("the stack that runs has no functions"),
				"start it without --no-burst, or name another place with --endpoint")
		}
	}
	if dir, err := t.StateDir(); err == nil {
		secret, err := access.ReadFunctionSecret(dir)
		if err != nil && !errors.Is(err, fs.ErrNotExist) && p.where.Endpoint == localEndpoint {
			return nil, err
		}
		where.Key, where.Secret = function.AccessKeyID, secret
	}
	where.OwnKey = p.where.Endpoint == localEndpoint
	cfg, err := where.Load(ctx)
	if problem, ok := errors.AsType[*awslambda.Problem](err); ok {
		return nil, &fault.UsageError{Problem: problem.What, Hint: problem.Hint}
	}
	if err != nil {
		return nil, err
	}
	if bucket != "" {
		if options.Upload, err = awslambda.NewUpload(cfg, bucket); err != nil {
			return nil, &fault.UsageError{
				Problem: "--bucket " + flag.Shown(bucket) + ": " + err.Error(), Hint: "write BUCKET or BUCKET/PREFIX",
			}
		}
	}
	options.Client = where.Lambda(cfg)
	return awslambda.New(ctx, options)
}

// use is what the engine that runs uses of the functions at an endpoint.
type use struct {
	// known is false where no engine answers, or none that spills to the endpoint and says which builds it may call.
	known  bool
	builds map[string]bool // the first 12 digits of their digests
	place  string          // of its artifacts, as in the names of its functions, which are of no other engine
}

// useOf asks the engine that runs on the state directory which functions of the endpoint it may call, and returns
// whether there is one.
func useOf(ctx context.Context, t *tool.Tool, endpoint string) (u use, runs bool, err error) {
	s, err := session.Connect(ctx, t)
	if errors.Is(err, session.ErrNoStack) {
		return use{}, false, nil
	}
	if err != nil {
		return use{}, false, err
	}
	s.Client.Close()
	if !samePlace(s.Stack.Addresses.Functions, endpoint) {
		return use{}, true, nil
	}
	u = use{
		known: s.Stack.FunctionBuilds != nil, builds: map[string]bool{}, place: awslambda.PlaceOf(s.Stack.FunctionPlace),
	}
	for _, app := range s.Stack.Apps {
		u.builds[short(app.Build)] = true
	}
	for _, build := range s.Stack.FunctionBuilds {
		u.builds[short(build)] = true
	}
	return u, true, nil
}

func samePlace(a, b string) bool { return strings.TrimSuffix(a, "/") == strings.TrimSuffix(b, "/") }

// uses reports whether the engine may call a function.
func (u use) uses(f awslambda.Function) bool { return f.Place == u.place && u.builds[short(f.Build)] }

// unused reports whether it is known that no engine calls a function: it is this engine's, and not of its builds.
// Functions of other places of artifacts, or of none, may be those of engines elsewhere.
func (u use) unused(f awslambda.Function) bool {
	return u.known && f.Place == u.place && !u.uses(f)
}

// short is as much of a digest as names a build.
func short(digest string) string { return digest[:min(len(digest), 12)] }

// word says whether an engine may call a function.
func (u use) word(f awslambda.Function) string {
	switch {
	case u.uses(f):
		return "yes"
	case u.unused(f):
		return "no"
	default:
		return "unknown"
	}
}
