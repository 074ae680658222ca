package awslambda

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/lambda"
	"github.com/aws/aws-sdk-go-v2/service/lambda/types"
)

// A Function is a function of this prefix, as AWS has it.
type Function struct {
	// Name is unique in its account and region.
	Name string `json:"function"`
	// App is the name of the app, and Build the digest of its build, in at least 12 hexadecimal digits.
	App   string `json:"app"`
	Build string `json:"build"`
	// Place is [PlaceOf] the artifacts that it reads and writes; empty where its name has none.
	Place string `json:"place,omitempty"`
	// Memory is in MB.
	Memory int `json:"memory_mb"`
	// Architecture is "x86_64" or "arm64".
	Architecture string `json:"architecture"`
	// CodeBytes is the size of its zip.
	CodeBytes int64 `json:"code_bytes"`
	// State is such as "Active" or "Inactive", which a function becomes that nobody calls for weeks.
	State string `json:"state,omitempty"`
	// Modified is when it was changed last; the zero time where that is not known.
	Modified time.Time `json:"last_modified,omitzero"`
	// Timeout is how long an invocation may run.
	Timeout time.Duration `json:"timeout_ns"`
	// Role is the ARN of the role that it runs with.
	Role string `json:"role"`
	// Reserved is the concurrency that is reserved for it; nil where none is, and in a list.
	Reserved *int `json:"reserved_concurrency,omitempty"`
}

// Change is what a deployment did.
type Change string

// The changes.
const (
	Created   Change = "created"
	Changed   Change = "changed"
	Unchanged Change = "unchanged"
)

// A Deployed function is what a deployment came to.
type Deployed struct {
	Function
	Change Change        `json:"change"`
	Took   time.Duration `json:"took_ns"`
}

// Deploy makes sure that build is deployed with memory MB of memory, as [Invoker.Ensure] does, and besides that the
// code is that of the file, the tags are there, and so much concurrency is reserved; nil leaves that as it is. A
// function that is so already is not touched. Errors are explained, see [Explain].
func (iv *Invoker) Deploy(ctx context.Context, build Build, memory int, reserved *int) (Deployed, error) {
	begun := time.Now()
	name, err := iv.nameOf(&build, memory)
	if err != nil {
		return Deployed{}, err
	}
	deployed, err := iv.deployWhole(ctx, build, name, memory, reserved)
	if err != nil {
		return Deployed{}, fmt.Errorf("function %s: %w", name, Explain(err, EndpointOf(iv.client)))
	}
	deployed.Took = time.Since(begun)
	return deployed, nil
}

func (iv *Invoker) deployWhole(
	ctx context.Context, build Build, name string, memory int, reserved *int,
) (Deployed, error) {
	archive, err := iv.zips.get(build)
	if err != nil {
		return Deployed{}, err
	}
	sum := sha256.Sum256(archive)
	d := deployment{
		build: build, want: iv.wanted(build, name, memory), code: base64.StdEncoding.EncodeToString(sum[:]),
	}
	state, err := iv.deploy(ctx, &d)
	if err != nil {
		return Deployed{}, err
	}
	tagged, err := iv.tag(ctx, aws.ToString(state.FunctionArn), d.want.Tags)
	if err != nil {
		return Deployed{}, fmt.Errorf("tag it: %w", err)
	}
	held, bounded, err := iv.reserve(ctx, name, reserved)
	if err != nil {
		return Deployed{}, fmt.Errorf("reserve concurrency: %w", err)
	}
	deployed := Deployed{Change: Unchanged, Function: Function{
		Name: name, App: build.App, Build: build.Digest, Place: PlaceOf(iv.opts.Place),
		Memory:       int(aws.ToInt32(state.MemorySize)),
		Architecture: architectureOf(state.Architectures), CodeBytes: state.CodeSize, State: string(state.State),
		Modified: modifiedAt(state.LastModified), Timeout: time.Duration(aws.ToInt32(state.Timeout)) * time.Second,
		Role: aws.ToString(state.Role), Reserved: held,
	}}
	switch {
	case d.created:
		deployed.Change = Created
	case d.changes > 0 || tagged || bounded:
		deployed.Change = Changed
	}
	return deployed, nil
}

// tag gives a function the tags that it lacks, and reports whether it lacked any.
func (iv *Invoker) tag(ctx context.Context, arn string, want map[string]string) (changed bool, err error) {
	held, err := iv.tagsOf(ctx, arn)
	if err != nil {
		return false, err
	}
	missing := maps.Clone(want)
	maps.DeleteFunc(missing, func(key, value string) bool { return held[key] == value })
	if len(missing) == 0 {
		return false, nil
	}
	_, err = iv.client.TagResource(ctx, &lambda.TagResourceInput{Resource: &arn, Tags: missing})
	return err == nil, err
}

func (iv *Invoker) tagsOf(ctx context.Context, arn string) (map[string]string, error) {
	out, err := iv.client.ListTags(ctx, &lambda.ListTagsInput{Resource: &arn})
	if err != nil {
		return nil, err
	}
	return out.Tags, nil
}

// reserve makes so much concurrency the function's own; nil leaves it. It returns what is reserved then.
func (iv *Invoker) reserve(ctx context.Context, name string, want *int) (held *int, changed bool, err error) {
	got, err := iv.client.GetFunctionConcurrency(ctx, &lambda.GetFunctionConcurrencyInput{FunctionName: &name})
	if err != nil {
		return nil, false, err
	}
	if got.ReservedConcurrentExecutions != nil {
		held = aws.Int(int(*got.ReservedConcurrentExecutions))
	}
	if want == nil || held != nil && *held == *want {
		return held, false, nil
	}
	_, err = iv.client.PutFunctionConcurrency(ctx, &lambda.PutFunctionConcurrencyInput{
		FunctionName: &name, ReservedConcurrentExecutions: aws.Int32(int32(*want)),
	})
	return want, true, err
}

// List returns the functions of this prefix, by app, then the last modified first, then memory. Errors are explained,
// see [Explain].
func (iv *Invoker) List(ctx context.Context) ([]Function, error) {
	functions := []Function{}
	pages := lambda.NewListFunctionsPaginator(iv.client, &lambda.ListFunctionsInput{})
	for pages.HasMorePages() {
		page, err := pages.NextPage(ctx)
		if err != nil {
			return nil, fmt.Errorf("list functions: %w", Explain(err, EndpointOf(iv.client)))
		}
		for i := range page.Functions {
			function, ours := iv.ours(&page.Functions[i])
			if !ours {
				continue
			}
			tags, err := iv.tagsOf(ctx, aws.ToString(page.Functions[i].FunctionArn))
			if errors.Is(classify(err), ErrNotFound) {
				continue // it was removed meanwhile
			}
			if err != nil {
				return nil, fmt.Errorf("read the tags of %s: %w", function.Name, Explain(err, EndpointOf(iv.client)))
			}
			function.App = cmp.Or(tags[tagApp], function.App)
			functions = append(functions, function)
		}
	}
	slices.SortStableFunc(functions, func(a, b Function) int {
		return cmp.Or(cmp.Compare(a.App, b.App), newestFirst(a, b), cmp.Compare(a.Build, b.Build),
			cmp.Compare(a.Memory, b.Memory))
	})
	return functions, nil
}

// newestFirst compares by the day of the last change only for functions of different builds, which stay together.
func newestFirst(a, b Function) int {
	if a.Build == b.Build {
		return 0
	}
	return b.Modified.Compare(a.Modified)
}

// ours returns what AWS lists as a function, and whether it is one of this prefix that was deployed by this package:
// its description says so. The app is what the name has of it.
func (iv *Invoker) ours(c *types.FunctionConfiguration) (Function, bool) {
	name := aws.ToString(c.FunctionName)
	digest, described := strings.CutPrefix(aws.ToString(c.Description), describedAs)
	rest, prefixed := strings.CutPrefix(name, iv.opts.Prefix+"-")
	if !described || !prefixed || !isDigest(digest) {
		return Function{}, false
	}
	app, tail, _ := strings.Cut(rest, "-"+digest[:12]+"-")
	place, _, placed := strings.Cut(tail, "-")
	if !placed {
		place = ""
	}
	return Function{
		Name: name, App: app, Build: digest, Place: place, Memory: int(aws.ToInt32(c.MemorySize)),
		Architecture: architectureOf(c.Architectures), CodeBytes: c.CodeSize, State: string(c.State),
		Modified: modifiedAt(c.LastModified), Timeout: time.Duration(aws.ToInt32(c.Timeout)) * time.Second,
		Role: aws.ToString(c.Role),
	}, true
}

// Remove deletes a function that [Invoker.List] has returned. One that is gone already is no error. Errors are
// explained, see [Explain].
func (iv *Invoker) Remove(ctx context.Context, name string) error {
	_, err := iv.client.DeleteFunction(ctx, &lambda.DeleteFunctionInput{FunctionName: &name})
	if err = classify(err); err != nil && !errors.Is(err, ErrNotFound) {
		return fmt.Errorf("remove %s: %w", name, Explain(err, EndpointOf(iv.client)))
	}
	iv.deployments.forget(name)
	return nil
}

// architectureOf is AWS's name of the processor; a function that says none has AWS's default.
func architectureOf(all []types.Architecture) string {
	if len(all) == 0 {
		return string(types.ArchitectureX8664)
	}
	return string(all[0])
}

// modifiedAt reads when a function was changed, as AWS writes it: 2026-11-27T03:30:00.123+0000.
func modifiedAt(text *string) time.Time {
	at, err := time.Parse("2006-01-02T15:04:05.999-0700", aws.ToString(text))
	if err != nil {
		return time.Time{}
	}
	return at
}
