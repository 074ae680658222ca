package awslambda_test

import (
	"archive/zip"
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awsmiddleware "github.com/aws/aws-sdk-go-v2/aws/middleware"
	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/lambda"
	"github.com/aws/aws-sdk-go-v2/service/lambda/types"
	"github.com/aws/smithy-go"
	"github.com/google/go-cmp/cmp"

	"github.com/spillway-ml/spillway/activities/awslambda"
	"github.com/spillway-ml/spillway/workers/function"
)

// Where AWS documents what the function host is held to.
const (
	guide         = "https://docs.aws.amazon.com/lambda/latest/dg/"
	reference     = "https://docs.aws.amazon.com/lambda/latest/api/"
	pageInvoke    = reference + "API_Invoke.html"
	pageCreate    = reference + "API_CreateFunction.html"
	pageLimits    = guide + "gettingstarted-limits.html"
	pageScaling   = guide + "scaling-behavior.html"
	pageGo        = guide + "golang-exceptions.html"
	pageTrouble   = guide + "troubleshooting-invocation.html"
	pageTimeout   = guide + "configuration-timeout.html"
	pageRuntime   = guide + "lambda-runtime-environment.html"
	pageContext   = guide + "golang-context.html"
	pageVariables = guide + "configuration-envvars.html"
	pageWrapper   = guide + "runtimes-modify.html"
	pageVersions  = guide + "configuration-versions.html"
	pageRetries   = "https://docs.aws.amazon.com/sdkref/latest/guide/feature-retry-behavior.html"
	pageBilling   = "https://aws.amazon.com/blogs/compute/aws-lambda-standardizes-billing-for-init-phase/"
	pageTags      = guide + "configuration-tags.html"
	pageReserved  = guide + "configuration-concurrency.html"
	pageReserve   = reference + "API_PutFunctionConcurrency.html"
	pageList      = reference + "API_ListFunctions.html"
	pageErrors    = reference + "CommonErrors.html"
	arnPrefix     = "arn:aws:lambda:us-east-1:000000000000:function:"
)

// behaviour is what a caller sees of a request. Its zero value is a success without anything.
type behaviour struct {
	Status int    // of the response
	Error  string // the name of the exception
	Reason types.ThrottleReason
	// FunctionError and Version are the headers X-Amz-Function-Error and X-Amz-Executed-Version.
	FunctionError, Version string
	// Says is what has to be part of the payload, of the error's message, or of what else the row shows.
	Says string
}

// documented is one row of the table: what AWS documents of a request, and a request that shows it.
type documented struct {
	name string
	page string
	call func(*testing.T, site) (seen behaviour)
	want behaviour
}

// site is a function host with functions, and the SDK's own client of it as its users make it, which retries.
type site struct {
	client *lambda.Client
	host   *function.Host
	iv     *awslambda.Invoker
	// small has 128 MB and large 1,769; brief has a second.
	small, large, brief string
	// wrapped is of a managed runtime and starts by its wrapper, unwrapped is of an OS-only one and names a wrapper that
	// there is not; empty but after withRuntimes.
	wrapped, unwrapped string
}

// invoked shows what an invoke came to.
func (s site) invoked(t *testing.T, in lambda.InvokeInput) behaviour {
	t.Helper()
	out, err := s.client.Invoke(t.Context(), &in, once)
	if err != nil {
		return failed(err)
	}
	return behaviour{
		Status: int(out.StatusCode), FunctionError: aws.ToString(out.FunctionError),
		Version: aws.ToString(out.ExecutedVersion), Says: string(out.Payload),
	}
}

// once keeps a client from trying again.
func once(o *lambda.Options) { o.Retryer = aws.NopRetryer{} }

// failed shows what an error of the SDK says.
func failed(err error) behaviour {
	var seen behaviour
	if response, ok := errors.AsType[*awshttp.ResponseError](err); ok {
		seen.Status = response.HTTPStatusCode()
	}
	if api, ok := errors.AsType[smithy.APIError](err); ok {
		seen.Error, seen.Says = api.ErrorCode(), api.ErrorMessage()
	}
	if throttled, ok := errors.AsType[*types.TooManyRequestsException](err); ok {
		seen.Reason, seen.Says = throttled.Reason, "after "+aws.ToString(throttled.RetryAfterSeconds)
	}
	return seen
}

// ordered invokes a function with an order.
func ordered(pick func(site) string, in order) func(*testing.T, site) behaviour {
	return func(t *testing.T, s site) behaviour {
		t.Helper()
		payload, err := json.Marshal(in)
		if err != nil {
			t.Fatal(err)
		}
		return s.invoked(t, lambda.InvokeInput{FunctionName: aws.String(pick(s)), Payload: payload})
	}
}

// plain invokes the large function with a payload and what else change sets.
func plain(payload string, change func(*lambda.InvokeInput, site)) func(*testing.T, site) behaviour {
	return func(t *testing.T, s site) behaviour {
		t.Helper()
		in := lambda.InvokeInput{FunctionName: &s.large, Payload: []byte(payload)}
		change(&in, s)
		return s.invoked(t, in)
	}
}

// logged invokes with the tail of the log, and shows that.
func logged(
	pick func(site) string, in order, show func(tail string, r awslambda.Report) string,
) func(*testing.T, site) behaviour {
	return func(t *testing.T, s site) behaviour {
		t.Helper()
		a, _ := invoke(t, s.iv, pick(s), in)
		return behaviour{Status: http.StatusOK, FunctionError: a.FunctionError, Says: show(a.LogTail, a.Report)}
	}
}

func small(s site) string { return s.small }
func large(s site) string { return s.large }
func brief(s site) string { return s.brief }

func keep(*lambda.InvokeInput, site) {}

// ofInvokes are the rows about invokes.
func ofInvokes() []documented {
	ran := func(says string) behaviour { return behaviour{Status: 200, Version: "$LATEST", Says: says} }
	broke := func(says string) behaviour {
		return behaviour{Status: 200, Version: "$LATEST", FunctionError: "Unhandled", Says: says}
	}
	return []documented{
		{"an answer", pageInvoke, plain(`{}`, keep), ran(`{"pid":`)},
		{"no payload is an empty object", pageInvoke, plain("", keep), ran(`{"pid":`)},
		{"a dry run checks and does not run", pageInvoke, plain(`{"op":"exit"}`, func(in *lambda.InvokeInput, _ site) {
			in.InvocationType = types.InvocationTypeDryRun
		}), behaviour{Status: 204}},
		{"an unknown invocation type", pageInvoke, plain(`{}`, func(in *lambda.InvokeInput, _ site) {
			in.InvocationType = "Later"
		}), behaviour{Status: 400, Error: "InvalidParameterValueException", Says: "Later"}},
		{"a payload that is not JSON", pageInvoke, plain(`{`, keep), behaviour{
			Status: 400, Error: "InvalidRequestContentException", Says: "Could not parse request body into json",
		}},
		{"the largest payload", pageLimits, plain(`"`+strings.Repeat("x", 6<<20-2)+`"`, keep), broke("cannot unmarshal")},
		{"a payload over 6 MB", pageLimits, plain(`"`+strings.Repeat("x", 6<<20-1)+`"`, keep), behaviour{
			Status: 413, Error: "RequestTooLargeException",
			Says: "Request must be smaller than 6291456 bytes for the InvokeFunction operation",
		}},
		{
			"an answer over 6 MB", pageLimits, ordered(large, order{Op: "pad", N: 6<<20 + 200}),
			broke(`"errorType":"Function.ResponseSizeTooLarge","errorMessage":"Response payload size exceeded maximum ` +
				`allowed payload size (6291556 bytes)."`),
		},

		{"by its name and version", pageVersions, plain(`{}`, func(in *lambda.InvokeInput, s site) {
			in.FunctionName = aws.String(s.large + ":$LATEST")
		}), ran("pid")},
		{"by its ARN", pageInvoke, plain(`{}`, func(in *lambda.InvokeInput, s site) {
			in.FunctionName = aws.String(arnPrefix + s.large)
		}), ran("pid")},
		{"by part of its ARN", pageInvoke, plain(`{}`, func(in *lambda.InvokeInput, s site) {
			in.FunctionName = aws.String("000000000000:function:" + s.large)
		}), ran("pid")},
		{"by a qualifier", pageVersions, plain(`{}`, func(in *lambda.InvokeInput, _ site) {
			in.Qualifier = aws.String("$LATEST")
		}), ran("pid")},
		{"an unknown function", pageInvoke, plain(`{}`, func(in *lambda.InvokeInput, _ site) {
			in.FunctionName = aws.String("nobody")
		}), behaviour{Status: 404, Error: "ResourceNotFoundException", Says: "Function not found: " + arnPrefix + "nobody"}},
		{"an unknown version", pageVersions, plain(`{}`, func(in *lambda.InvokeInput, _ site) {
			in.Qualifier = aws.String("7")
		}), behaviour{Status: 404, Error: "ResourceNotFoundException", Says: ":7"}},

		{
			"an error of the function's code", pageGo, ordered(large, order{Op: "error"}),
			broke(`{"errorMessage":"bad input","errorType":"errorString"}`),
		},
		{
			"a panic", pageGo, ordered(large, order{Op: "panic"}),
			broke(`{"errorMessage":"boom","errorType":"string","stackTrace":[`),
		},
		{
			"a process that exits", pageTrouble, ordered(large, order{Op: "exit"}),
			broke(`Error: Runtime exited with error: exit status 3"`),
		},
		{
			"a function that runs too long", pageTimeout, ordered(brief, order{Op: "sleep", N: 60_000}),
			broke(`Task timed out after 1.00 seconds"`),
		},
		{
			"a function without memory", pageTrouble, ordered(small, order{Op: "alloc", N: 300}),
			broke(`{"errorType":"Runtime.ExitError","errorMessage":"RequestId: `),
		},
	}
}

// ofLogs are the rows about what is logged and billed.
func ofLogs() []documented {
	lines := func(tail string, _ awslambda.Report) string {
		var words []string
		for line := range strings.Lines(tail) {
			first, _, _ := strings.Cut(strings.TrimSpace(line), " ")
			words = append(words, first)
		}
		return strings.Join(words, " ")
	}
	return []documented{
		{
			"the log is asked for", pageInvoke, logged(large, order{Op: "print"}, lines),
			behaviour{Status: 200, Says: "START hello END REPORT"},
		},
		{
			"the log is its last 4 KB, whatever is printed", pageInvoke,
			logged(large, order{Op: "print much"}, func(tail string, r awslambda.Report) string {
				return fmt.Sprint(len(tail), r.MemorySizeMB, strings.HasPrefix(tail, "START"))
			}),
			behaviour{Status: 200, Says: "4096 1769 false"},
		},
		{"the log is not asked for", pageInvoke, func(t *testing.T, s site) behaviour {
			t.Helper()
			out, err := s.client.Invoke(t.Context(), &lambda.InvokeInput{FunctionName: &s.large})
			if err != nil {
				t.Fatal(err)
			}
			return behaviour{Status: int(out.StatusCode), Says: fmt.Sprintf("%q", aws.ToString(out.LogResult))}
		}, behaviour{Status: 200, Says: `""`}},
		{
			"the report of a function without memory", pageTrouble,
			logged(small, order{Op: "alloc", N: 300}, func(_ string, r awslambda.Report) string {
				return fmt.Sprint(r.Status, " ", r.ErrorType, " ", r.MaxMemoryMB >= r.MemorySizeMB)
			}),
			behaviour{Status: 200, FunctionError: "Unhandled", Says: "error Runtime.OutOfMemory true"},
		},
		{
			"the report of a function that runs too long", pageTimeout,
			logged(brief, order{Op: "sleep", N: 60_000}, func(_ string, r awslambda.Report) string {
				return fmt.Sprint(r.Status, " ", r.Duration)
			}),
			behaviour{Status: 200, FunctionError: "Unhandled", Says: "timeout 1s"},
		},
		{
			"the first invoke is billed with its init, in whole milliseconds", pageBilling,
			func(t *testing.T, s site) behaviour {
				t.Helper()
				invoke(t, s.iv, s.large, order{Op: "exit"}) // so that the next one is the first of its environment
				cold, _ := invoke(t, s.iv, s.large, order{})
				warm, _ := invoke(t, s.iv, s.large, order{})
				whole := func(r awslambda.Report) bool {
					over := r.BilledDuration - r.InitDuration - r.Duration // both are shown in hundredths of a millisecond
					return r.BilledDuration%time.Millisecond == 0 && over > -20*time.Microsecond && over < time.Millisecond+
						20*time.Microsecond
				}
				return behaviour{Status: 200, Says: fmt.Sprint(cold.Report.InitDuration > 0, warm.Report.InitDuration,
					whole(cold.Report), whole(warm.Report))}
			},
			behaviour{Status: 200, Says: "true 0s true true"},
		},
		{"the ID of the request is the caller's, the function's and the log's", pageContext, func(
			t *testing.T, s site,
		) behaviour {
			t.Helper()
			out, err := s.client.Invoke(t.Context(), &lambda.InvokeInput{
				FunctionName: &s.large, Payload: []byte(`{"op":"context"}`), LogType: types.LogTypeTail,
			})
			if err != nil {
				t.Fatal(err)
			}
			id, _ := awsmiddleware.GetRequestIDMetadata(out.ResultMetadata)
			tail, err := base64.StdEncoding.DecodeString(aws.ToString(out.LogResult))
			if err != nil {
				t.Error(err)
			}
			return behaviour{Status: 200, Says: fmt.Sprint(strings.Contains(string(out.Payload), `"request":"`+id+`"`),
				strings.Count(string(tail), id))}
		}, behaviour{Status: 200, Says: "true 3"}},
	}
}

// ofEnvironments are the rows about what a function finds around itself.
func ofEnvironments() []documented {
	shows := func(op, says string) documented {
		return documented{
			"a function knows " + op, pageVariables, ordered(small, order{Op: op}),
			behaviour{Status: 200, Version: "$LATEST", Says: says},
		}
	}
	return []documented{
		shows("variable AWS_LAMBDA_FUNCTION_MEMORY_SIZE", `"var":"128"`),
		shows("variable AWS_LAMBDA_FUNCTION_VERSION", `"var":"$LATEST"`),
		shows("variable AWS_REGION", `"var":"us-east-1"`),
		shows("variable AWS_LAMBDA_INITIALIZATION_TYPE", `"var":"on-demand"`),
		{
			"a function knows its ARN", pageContext, ordered(brief, order{Op: "context"}),
			behaviour{Status: 200, Version: "$LATEST", Says: `"arn":"` + arnPrefix + `short-`},
		},
		{"a function knows its deadline", pageContext, func(t *testing.T, s site) behaviour {
			t.Helper()
			_, said := invoke(t, s.iv, brief(s), order{Op: "context"})
			return behaviour{Status: 200, Says: strconv.FormatBool(said.LeftMS > 0 && said.LeftMS <= 1000)}
		}, behaviour{Status: 200, Says: "true"}},
		{"an environment serves one invoke after another", pageRuntime, func(t *testing.T, s site) behaviour {
			t.Helper()
			_, first := invoke(t, s.iv, s.large, order{})
			invoke(t, s.iv, s.large, order{Op: "error"}) // its code fails, which is no reason for a new environment
			_, third := invoke(t, s.iv, s.large, order{})
			return behaviour{Status: 200, Says: strconv.FormatBool(first.PID == third.PID)}
		}, behaviour{Status: 200, Says: "true"}},
	}
}

// withRuntimes returns the site with functions of a managed runtime, on a machine that has one.
func (s site) withRuntimes(t *testing.T) site {
	t.Helper()
	b := build(t)
	s.unwrapped = ensure(t, invoker(t, awslambda.Options{
		Client: s.client, Prefix: "plain", Environment: map[string]string{"AWS_LAMBDA_EXEC_WRAPPER": "/var/task/none"},
	}), b, 1769)
	b.App, b.Runtime = "python", function.Python()
	s.wrapped = ensure(t, s.iv, b, 1769)
	return s
}

// ofRuntimes are the rows about managed runtimes that a wrapper starts, on a machine that has Python.
func ofRuntimes(s site) []documented {
	wrapped := func(site) string { return s.wrapped }
	shows := func(name, page string, in order, says string) documented {
		return documented{name, page, ordered(wrapped, in), behaviour{Status: 200, Version: "$LATEST", Says: says}}
	}
	return []documented{
		shows("a wrapper is given the interpreter and all that the runtime starts it with", pageWrapper,
			order{Op: "arguments"}, "/"+function.Python()+` /var/runtime/bootstrap.py"`),
		shows("a function knows its managed runtime", pageVariables, order{Op: "variable AWS_EXECUTION_ENV"},
			`"var":"AWS_Lambda_`+function.Python()+`"`),
		shows("a function knows where its runtime lies", pageVariables, order{Op: "variable LAMBDA_RUNTIME_DIR"},
			`"var":"/var/runtime"`),
		{
			"an OS-only runtime knows no wrapper", pageWrapper,
			ordered(func(site) string { return s.unwrapped }, order{Op: "arguments"}),
			behaviour{Status: 200, Version: "$LATEST", Says: `{"pid":`},
		},
		{"an OS-only runtime is none of a language", pageVariables, ordered(large, order{
			Op: "variable AWS_EXECUTION_ENV",
		}), behaviour{Status: 200, Version: "$LATEST", Says: `{"pid":`}},
	}
}

// ofFunctions are the rows about the functions themselves.
func ofFunctions() []documented {
	created := func(change func(*lambda.CreateFunctionInput)) func(*testing.T, site) behaviour {
		return func(t *testing.T, s site) behaviour {
			t.Helper()
			in := lambda.CreateFunctionInput{
				FunctionName: aws.String("another"), Role: aws.String("arn:aws:iam::000000000000:role/test"),
				Runtime: types.RuntimeProvidedal2023, Handler: aws.String("bootstrap"),
				Code: &types.FunctionCode{ZipFile: bootstrapZip(t)},
			}
			change(&in)
			_, err := s.client.CreateFunction(t.Context(), &in, once)
			return failed(err)
		}
	}
	invalid := func(says string) behaviour {
		return behaviour{Status: 400, Error: "InvalidParameterValueException", Says: says}
	}
	return []documented{
		{"a function that there is", pageCreate, func(t *testing.T, s site) behaviour {
			t.Helper()
			return created(func(in *lambda.CreateFunctionInput) { in.FunctionName = &s.small })(t, s)
		}, behaviour{Status: 409, Error: "ResourceConflictException", Says: "Function already exist: "}},
		{"less than 128 MB", pageLimits, created(func(in *lambda.CreateFunctionInput) {
			in.MemorySize = aws.Int32(127)
		}), invalid("127")},
		{"more than 10,240 MB", pageLimits, created(func(in *lambda.CreateFunctionInput) {
			in.MemorySize = aws.Int32(10_241)
		}), invalid("10241")},
		{"more than 15 minutes", pageLimits, created(func(in *lambda.CreateFunctionInput) {
			in.Timeout = aws.Int32(901)
		}), invalid("901")},
		{"a variable that is AWS's", pageVariables, created(func(in *lambda.CreateFunctionInput) {
			in.Environment = &types.Environment{Variables: map[string]string{"AWS_REGION": "x"}}
		}), invalid("AWS_REGION")},
		{"more than 4 KB of variables", pageLimits, created(func(in *lambda.CreateFunctionInput) {
			in.Environment = &types.Environment{Variables: map[string]string{"AA": strings.Repeat("x", 4<<10)}}
		}), invalid("4KB limit")},
		{"a runtime that there is not", pageCreate, created(func(in *lambda.CreateFunctionInput) {
			in.Runtime = "cobol85"
		}), invalid("cobol85")},
		{"a zip that is none", pageCreate, created(func(in *lambda.CreateFunctionInput) {
			in.Code.ZipFile = []byte("no zip")
		}), invalid("Could not unzip uploaded file")},
		{"the settings of nobody", reference + "API_GetFunctionConfiguration.html", func(t *testing.T, s site) behaviour {
			t.Helper()
			_, err := s.client.GetFunctionConfiguration(t.Context(),
				&lambda.GetFunctionConfigurationInput{FunctionName: aws.String("nobody")}, once)
			return failed(err)
		}, behaviour{Status: 404, Error: "ResourceNotFoundException", Says: "Function not found: " + arnPrefix + "nobody"}},
		{"a request of another key", pageErrors, func(t *testing.T, s site) behaviour {
			t.Helper()
			_, err := s.client.Invoke(t.Context(), &lambda.InvokeInput{FunctionName: &s.small}, once,
				func(o *lambda.Options) {
					o.Credentials = credentials.NewStaticCredentialsProvider("other", "other", "")
				})
			return failed(err)
		}, behaviour{Status: 403, Error: "UnrecognizedClientException", Says: "other"}},
	}
}

// ofTags are the rows about tags and lists.
func ofTags() []documented {
	arn := func(s site) *string { return aws.String(arnPrefix + s.small) }
	tag := func(tags map[string]string) func(*testing.T, site) behaviour {
		return func(t *testing.T, s site) behaviour {
			t.Helper()
			_, err := s.client.TagResource(t.Context(), &lambda.TagResourceInput{Resource: arn(s), Tags: tags}, once)
			if err != nil {
				return failed(err)
			}
			return tagsSeen(t, s)
		}
	}
	many := map[string]string{}
	for i := range 51 {
		many[strconv.Itoa(i)] = ""
	}
	refusal := func(says string) behaviour {
		return behaviour{Status: 400, Error: "InvalidParameterValueException", Says: says}
	}
	return []documented{
		{
			"tags that are added", reference + "API_TagResource.html", tag(map[string]string{"team": "a", "x": "1"}),
			behaviour{Status: 200, Says: "team=a x=1"},
		},
		{
			"a tag that is written again", reference + "API_TagResource.html", tag(map[string]string{"team": "b"}),
			behaviour{Status: 200, Says: "team=b x=1"},
		},
		{"a tag that is taken away", reference + "API_UntagResource.html", func(t *testing.T, s site) behaviour {
			t.Helper()
			if _, err := s.client.UntagResource(t.Context(),
				&lambda.UntagResourceInput{Resource: arn(s), TagKeys: []string{"x", "nothing"}}, once); err != nil {
				return failed(err)
			}
			return tagsSeen(t, s)
		}, behaviour{Status: 200, Says: "team=b"}},
		{"more than 50 tags", pageTags, tag(many), refusal("at most 50")},
		{"a tag of AWS", pageTags, tag(map[string]string{"aws:x": "1"}), refusal("aws:x")},
		{"a tag with a long key", pageTags, tag(map[string]string{strings.Repeat("k", 129): ""}), refusal("128 characters")},
		{
			"a tag with a long value", pageTags, tag(map[string]string{"k": strings.Repeat("v", 257)}),
			refusal("256 characters"),
		},
		{"the tags of nobody", reference + "API_ListTags.html", func(t *testing.T, s site) behaviour {
			t.Helper()
			_, err := s.client.ListTags(t.Context(), &lambda.ListTagsInput{Resource: aws.String(arnPrefix + "nobody")}, once)
			return failed(err)
		}, behaviour{Status: 404, Error: "ResourceNotFoundException", Says: "nobody"}},
		{"functions by pages", pageList, func(t *testing.T, s site) behaviour {
			t.Helper()
			var sizes []int
			pages := lambda.NewListFunctionsPaginator(s.client, &lambda.ListFunctionsInput{MaxItems: aws.Int32(2)})
			for pages.HasMorePages() {
				page, err := pages.NextPage(t.Context())
				if err != nil {
					return failed(err)
				}
				sizes = append(sizes, len(page.Functions))
			}
			total := len(s.host.Stats())
			want := slices.Repeat([]int{2}, total/2)
			if total%2 == 1 {
				want = append(want, 1)
			}
			return behaviour{Status: 200, Says: strconv.FormatBool(total >= 3 && slices.Equal(sizes, want))}
		}, behaviour{Status: 200, Says: "true"}},
		{"a page of none", pageList, func(t *testing.T, s site) behaviour {
			t.Helper()
			_, err := s.client.ListFunctions(t.Context(), &lambda.ListFunctionsInput{MaxItems: aws.Int32(0)}, once)
			return failed(err)
		}, refusal("between 1 and 10000")},
	}
}

// tagsSeen shows the tags of the small function that are not Spillway's.
func tagsSeen(t *testing.T, s site) behaviour {
	t.Helper()
	out, err := s.client.ListTags(t.Context(), &lambda.ListTagsInput{Resource: aws.String(arnPrefix + s.small)}, once)
	if err != nil {
		return failed(err)
	}
	var tags []string
	for key, value := range out.Tags {
		if !strings.HasPrefix(key, "spillway:") {
			tags = append(tags, key+"="+value)
		}
	}
	slices.Sort(tags)
	return behaviour{Status: 200, Says: strings.Join(tags, " ")}
}

// ofReservations are the rows about reserved concurrency, of which a host has 1,000.
func ofReservations() []documented {
	reserve := func(n int32) func(*testing.T, site) behaviour {
		return func(t *testing.T, s site) behaviour {
			t.Helper()
			if _, err := s.client.PutFunctionConcurrency(t.Context(), &lambda.PutFunctionConcurrencyInput{
				FunctionName: &s.small, ReservedConcurrentExecutions: &n,
			}, once); err != nil {
				return failed(err)
			}
			got, err := s.client.GetFunctionConcurrency(t.Context(),
				&lambda.GetFunctionConcurrencyInput{FunctionName: &s.small}, once)
			if err != nil {
				return failed(err)
			}
			whole, err := s.client.GetFunction(t.Context(), &lambda.GetFunctionInput{FunctionName: &s.small}, once)
			if err != nil {
				return failed(err)
			}
			return behaviour{Status: 200, Says: fmt.Sprint(aws.ToInt32(got.ReservedConcurrentExecutions),
				aws.ToInt32(whole.Concurrency.ReservedConcurrentExecutions))}
		}
	}
	refusal := func(says string) behaviour {
		return behaviour{Status: 400, Error: "InvalidParameterValueException", Says: says}
	}
	return []documented{
		{"a reservation", pageReserve, reserve(900), behaviour{Status: 200, Says: "900 900"}},
		{"another one in its place", pageReserve, reserve(0), behaviour{Status: 200, Says: "0 0"}},
		{"a function with none left is switched off", pageReserved, ordered(small, order{}), behaviour{
			Status: 429, Error: "TooManyRequestsException",
			Reason: types.ThrottleReasonReservedFunctionConcurrentInvocationLimitExceeded, Says: "after 1",
		}},
		{"a reservation that leaves others less than 100", pageReserved, reserve(901), refusal(
			"Specified ReservedConcurrentExecutions for function decreases account's UnreservedConcurrentExecution below its " +
				"minimum value of [100].")},
		{"a reservation that is given up", reference + "API_DeleteFunctionConcurrency.html", func(
			t *testing.T, s site,
		) behaviour {
			t.Helper()
			if _, err := s.client.DeleteFunctionConcurrency(t.Context(),
				&lambda.DeleteFunctionConcurrencyInput{FunctionName: &s.small}, once); err != nil {
				return failed(err)
			}
			got, err := s.client.GetFunctionConcurrency(t.Context(),
				&lambda.GetFunctionConcurrencyInput{FunctionName: &s.small}, once)
			if err != nil {
				return failed(err)
			}
			return behaviour{Status: 200, Says: strconv.FormatBool(got.ReservedConcurrentExecutions == nil)}
		}, behaviour{Status: 200, Says: "true"}},
		{
			"a function without a reservation runs again", pageReserved, ordered(small, order{}),
			behaviour{Status: 200, Version: "$LATEST", Says: "pid"},
		},
	}
}

// TestWhatIsReservedIsTheFunctionsAlone has an account with concurrency for 102, of which 2 are reserved.
func TestWhatIsReservedIsTheFunctionsAlone(t *testing.T) {
	t.Parallel()
	s := newSite(t, function.Options{Concurrency: 102})
	if _, err := s.client.PutFunctionConcurrency(t.Context(), &lambda.PutFunctionConcurrencyInput{
		FunctionName: &s.large, ReservedConcurrentExecutions: aws.Int32(1),
	}); err != nil {
		t.Fatal(err)
	}
	release := occupy(t, s.host, s.iv, s.large)
	documented{"more than is reserved", pageReserved, nil, behaviour{
		Status: 429, Error: "TooManyRequestsException",
		Reason: types.ThrottleReasonReservedFunctionConcurrentInvocationLimitExceeded, Says: "after 1",
	}}.check(t, s.invoked(t, lambda.InvokeInput{FunctionName: &s.large}))
	documented{
		"another function meanwhile", pageReserved, nil,
		behaviour{Status: 200, Version: "$LATEST", Says: "pid"},
	}.check(t, s.invoked(t, lambda.InvokeInput{FunctionName: &s.small}))
	release()
}

// bootstrapZip returns a zip with a bootstrap that would run.
func bootstrapZip(t *testing.T) []byte {
	t.Helper()
	var b bytes.Buffer
	z := zip.NewWriter(&b)
	header := &zip.FileHeader{Name: "bootstrap"}
	header.SetMode(0o755)
	w, err := z.CreateHeader(header)
	if err == nil {
		_, err = w.Write([]byte("#!/bin/sh\n"))
	}
	if err := errors.Join(err, z.Close()); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// TestManagedRuntimesStartAsAWSDocumentsIt goes through what AWS documents of wrappers, on a host of its own.
func TestManagedRuntimesStartAsAWSDocumentsIt(t *testing.T) {
	t.Parallel()
	if function.Python() == "" {
		t.Skip("needs a python3 that functions find")
	}
	s := newSite(t, function.Options{}).withRuntimes(t)
	for _, row := range ofRuntimes(s) {
		t.Run(row.name, func(t *testing.T) {
			row.check(t, row.call(t, s))
		})
	}
}

// TestTheHostBehavesAsAWSDocumentsIt goes through what AWS documents of the API, with the SDK's own client and
// functions made with aws-lambda-go. What the host leaves out on purpose is in TestWhatTheHostLeavesOutItRefuses.
func TestTheHostBehavesAsAWSDocumentsIt(t *testing.T) {
	t.Parallel()
	s := newSite(t, function.Options{})
	for _, rows := range [][]documented{
		ofInvokes(), ofLogs(), ofEnvironments(), ofFunctions(), ofTags(), ofReservations(),
	} {
		for _, row := range rows {
			t.Run(row.name, func(t *testing.T) {
				row.check(t, row.call(t, s))
			})
		}
	}
}

// check compares what was seen with what is documented.
func (d documented) check(t *testing.T, seen behaviour) {
	t.Helper()
	if !strings.Contains(seen.Says, d.want.Says) {
		t.Errorf("got %.300q, want %q (%s)", seen.Says, d.want.Says, d.page)
	}
	seen.Says = d.want.Says
	if diff := cmp.Diff(d.want, seen); diff != "" {
		t.Errorf("(-documented +got), %s:\n%s", d.page, diff)
	}
}

func newSite(t *testing.T, opts function.Options) site {
	t.Helper()
	h, c := host(t, opts)
	iv := invoker(t, awslambda.Options{Client: c})
	b := build(t)
	short := invoker(t, awslambda.Options{Client: c, Timeout: time.Second, Prefix: "short"})
	return site{
		client: c, host: h, iv: iv, small: ensure(t, iv, b, 128), large: ensure(t, iv, b, 1769),
		brief: ensure(t, short, b, 1769),
	}
}

func TestConcurrencyIsRefusedAsDocumented(t *testing.T) {
	t.Parallel()
	full := newSite(t, function.Options{Concurrency: 1})
	release := occupy(t, full.host, full.iv, full.large)
	documented{
		"the account's concurrency", pageInvoke, nil, behaviour{
			Status: 429, Error: "TooManyRequestsException",
			Reason: types.ThrottleReasonConcurrentInvocationLimitExceeded, Says: "after 1",
		},
	}.check(t, full.invoked(t, lambda.InvokeInput{FunctionName: &full.small}))
	before := stats(full.host, full.small).Throttled
	_, err := full.client.Invoke(t.Context(), &lambda.InvokeInput{FunctionName: &full.small})
	documented{"what the SDK tries again by itself", pageRetries, nil, behaviour{
		Status: 429, Error: "TooManyRequestsException",
		Reason: types.ThrottleReasonConcurrentInvocationLimitExceeded, Says: "after 1",
	}}.check(t, failed(err))
	if tries := stats(full.host, full.small).Throttled - before; tries != 3 {
		t.Errorf("the SDK's standard mode: got %d attempts, want 3 (%s)", tries, pageRetries)
	}
	release()

	growing := newSite(t, function.Options{ScaleOut: 1})
	release = occupy(t, growing.host, growing.iv, growing.large)
	documented{
		"the rate of scaling out, by function", pageScaling, nil, behaviour{
			Status: 429, Error: "TooManyRequestsException",
			Reason: types.ThrottleReasonFunctionInvocationRateLimitExceeded, Says: "after 1",
		},
	}.check(t, growing.invoked(t, lambda.InvokeInput{FunctionName: &growing.large}))
	documented{
		"another function", pageScaling, nil,
		behaviour{Status: 200, Version: "$LATEST", Says: "pid"},
	}.check(t, growing.invoked(t, lambda.InvokeInput{FunctionName: &growing.small}))
	release()
}

// TestWhatTheHostLeavesOutItRefuses has the documented operations that nobody here needs: each says so.
func TestWhatTheHostLeavesOutItRefuses(t *testing.T) {
	t.Parallel()
	s := newSite(t, function.Options{})
	_, publishing := s.client.PublishVersion(t.Context(), &lambda.PublishVersionInput{FunctionName: &s.small}, once)
	_, aliasing := s.client.CreateAlias(t.Context(), &lambda.CreateAliasInput{
		FunctionName: &s.small, Name: aws.String("a"), FunctionVersion: aws.String("1"),
	}, once)
	for name, seen := range map[string]behaviour{
		"versions": failed(publishing), "aliases": failed(aliasing),
	} {
		documented{name, reference, nil, behaviour{
			Status: 404, Error: "UnknownOperationException", Says: "does not have the operation",
		}}.check(t, seen)
	}
	for says, in := range map[string]lambda.CreateFunctionInput{
		"runs here only by a wrapper of the zip": {Runtime: types.Runtime(function.Python())},
		"does not run here: this machine has":    {Runtime: types.RuntimePython36},
	} {
		if function.Python() == "" {
			break
		}
		in.FunctionName, in.Handler, in.Role = aws.String("another"), aws.String("app.handler"),
			aws.String("arn:aws:iam::000000000000:role/test")
		in.Code = &types.FunctionCode{ZipFile: bootstrapZip(t)}
		_, err := s.client.CreateFunction(t.Context(), &in, once)
		documented{"a managed runtime that is not wrapped, or of another version", pageCreate, nil, behaviour{
			Status: 400, Error: "InvalidParameterValueException", Says: says,
		}}.check(t, failed(err))
	}
	documented{"asynchronous invokes", pageInvoke, nil, behaviour{
		Status: 400, Error: "InvalidParameterValueException", Says: "do not run here",
	}}.check(t, s.invoked(t, lambda.InvokeInput{FunctionName: &s.small, InvocationType: types.InvocationTypeEvent}))
}
