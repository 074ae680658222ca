package aws_test

import (
	"context"
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"io/fs"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awsmiddleware "github.com/aws/aws-sdk-go-v2/aws/middleware"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/lambda"
	"github.com/aws/aws-sdk-go-v2/service/pricing"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/smithy-go/middleware"
	"github.com/google/go-cmp/cmp"

	"github.com/spillway-ml/spillway/activities/awslambda"
	"github.com/spillway-ml/spillway/activities/awsprices"
	"github.com/spillway-ml/spillway/activities/awsprices/awspricestest"
	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/workers/function"
)

// services are those that the code calls, with their clients, by the end of the SDK's import path, which is also how
// IAM names them.
var services = map[string]reflect.Type{
	"ec2": reflect.TypeFor[*ec2.Client](), "lambda": reflect.TypeFor[*lambda.Client](),
	"pricing": reflect.TypeFor[*pricing.Client](), "s3": reflect.TypeFor[*s3.Client](),
}

const sdk = "github.com/aws/aws-sdk-go-v2/"

// actions are what IAM asks for where it is not named as the operation is:
// https://docs.aws.amazon.com/service-authorization/latest/reference/list_awslambda.html and .../list_amazons3.html.
var actions = map[string][]string{
	"lambda:Invoke":                      {"lambda:InvokeFunction"},
	"lambda:CreateFunction":              {"lambda:CreateFunction", "lambda:TagResource", "iam:PassRole", "s3:GetObject"},
	"lambda:UpdateFunctionCode":          {"lambda:UpdateFunctionCode", "s3:GetObject"},
	"lambda:UpdateFunctionConfiguration": {"lambda:UpdateFunctionConfiguration", "iam:PassRole"},
	"s3:HeadObject":                      {"s3:GetObject"},
	"s3:HeadBucket":                      {"s3:ListBucket"},
	"s3:ListObjectsV2":                   {"s3:ListBucket"},
	"s3:ListMultipartUploads":            {"s3:ListBucketMultipartUploads"},
	"s3:DeleteObjects":                   {"s3:DeleteObject"},
	"s3:GetBucketLifecycleConfiguration": {"s3:GetLifecycleConfiguration"},
	"s3:CreateMultipartUpload":           {"s3:PutObject"},
	"s3:UploadPart":                      {"s3:PutObject"},
	"s3:CompleteMultipartUpload":         {"s3:PutObject"},
	"s3:transfermanager":                 {"s3:PutObject", "s3:AbortMultipartUpload"},
}

func actionsOf(operations []string) []string {
	all := map[string]bool{}
	for _, operation := range operations {
		needed, special := actions[operation]
		if !special {
			needed = []string{operation}
		}
		for _, action := range needed {
			all[action] = true
		}
	}
	return slices.Sorted(maps.Keys(all))
}

// written returns the operations that the code has calls of, by its sources.
func written(t *testing.T) []string {
	t.Helper()
	root := filepath.Join("..", "..")
	found := map[string]bool{}
	for _, top := range []string{"activities", "cmd", "workers", "workflows"} {
		err := filepath.WalkDir(filepath.Join(root, top), func(path string, entry fs.DirEntry, err error) error {
			switch {
			case err != nil:
				return err
			case entry.IsDir() && (strings.HasSuffix(entry.Name(), "test") || entry.Name() == "node_modules"):
				return fs.SkipDir
			case !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go"):
				return nil
			}
			return operationsIn(path, found)
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return slices.Sorted(maps.Keys(found))
}

// operationsIn adds the operations that a file calls: methods of the clients of the services that it imports.
func operationsIn(path string, found map[string]bool) error {
	file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
	if err != nil {
		return nil //nolint:nilerr // a file of test data that is meant to be wrong calls nobody
	}
	var imported []string
	for _, one := range file.Imports {
		name, err := strconv.Unquote(one.Path.Value)
		if err != nil {
			return err
		}
		if service, ok := strings.CutPrefix(name, sdk+"service/"); ok && services[service] != nil {
			imported = append(imported, service)
		}
		if name == sdk+"feature/s3/transfermanager" {
			found["s3:transfermanager"] = true
		}
	}
	ast.Inspect(file, func(n ast.Node) bool {
		call, isCall := n.(*ast.CallExpr)
		if !isCall {
			return true
		}
		selected, isMethod := call.Fun.(*ast.SelectorExpr)
		if !isMethod {
			return true
		}
		name := selected.Sel.Name
		if paged, ok := strings.CutPrefix(name, "New"); ok && strings.HasSuffix(paged, "Paginator") {
			name = strings.TrimSuffix(paged, "Paginator")
		} else if len(call.Args) < 2 {
			return true // an operation takes a context and its input
		}
		for _, service := range imported {
			if _, is := services[service].MethodByName(name); is && name != "Options" {
				found[service+":"+name] = true
			}
		}
		return true
	})
	return nil
}

// recorder notes what clients of the SDK call.
type recorder struct {
	mu    sync.Mutex
	calls map[string]bool
}

func (r *recorder) add(stack *middleware.Stack) error {
	return stack.Initialize.Add(middleware.InitializeMiddlewareFunc("record", func(
		ctx context.Context, in middleware.InitializeInput, next middleware.InitializeHandler,
	) (middleware.InitializeOutput, middleware.Metadata, error) {
		r.mu.Lock()
		service := strings.ToLower(awsmiddleware.GetServiceID(ctx))
		r.calls[service+":"+awsmiddleware.GetOperationName(ctx)] = true
		r.mu.Unlock()
		return next.HandleInitialize(ctx, in)
	}), middleware.After)
}

// called does all that the commands and the engine do with functions and prices, and returns the operations that it
// took.
func called(t *testing.T) []string {
	t.Helper()
	r := &recorder{calls: map[string]bool{}}
	zips := map[string][]byte{}
	bucket := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if req.Method == http.MethodHead {
			if strings.Count(req.URL.Path, "/") > 1 {
				w.WriteHeader(http.StatusNotFound)
			}
			return
		}
		zips[req.URL.Path], _ = io.ReadAll(req.Body)
	}))
	defer bucket.Close()
	host, err := function.New(function.Options{Dir: t.TempDir(), Secret: "secret", S3: func(
		_ context.Context, bucket, key string,
	) ([]byte, error) {
		return zips["/"+bucket+"/"+key], nil
	}})
	if err != nil {
		t.Fatal(err)
	}
	lambdas := httptest.NewServer(host)
	defer lambdas.Close()
	defer func() {
		if err := host.Close(); err != nil {
			t.Error(err)
		}
	}()
	prices := awspricestest.New(t)
	config := func(endpoint, key string) aws.Config {
		return aws.Config{
			Region: "us-east-1", BaseEndpoint: &endpoint, Retryer: func() aws.Retryer { return aws.NopRetryer{} },
			Credentials: credentials.NewStaticCredentialsProvider(key, "secret", ""),
			APIOptions:  []func(*middleware.Stack) error{r.add},
		}
	}
	useFunctions(t, config(lambdas.URL, function.AccessKeyID), config(bucket.URL, "key"))
	if _, err := awsprices.Fetch(t.Context(), config(prices.URL, "key"), awsprices.Query{
		Region: "us-east-1", Now: time.Now(), History: time.Hour,
		Hosts: map[string]quantity.Size{"c7i.xlarge": {CPU: quantity.Core}}, Functions: quantity.Size{Memory: quantity.GiB},
	}); err != nil {
		t.Fatal(err)
	}
	return slices.Sorted(maps.Keys(r.calls))
}

// useFunctions deploys a program by S3, changes its code and its settings, invokes, lists and removes it.
func useFunctions(t *testing.T, lambdas, bucket aws.Config) {
	t.Helper()
	upload, err := awslambda.NewUpload(bucket, "bucket/prefix")
	if err != nil {
		t.Fatal(err)
	}
	client := awslambda.Where{}.Lambda(lambdas)
	invoker := func(options awslambda.Options) *awslambda.Invoker {
		options.Client, options.Upload = client, upload
		iv, err := awslambda.New(t.Context(), options)
		if err != nil {
			t.Fatal(err)
		}
		return iv
	}
	build := awslambda.Build{App: "app", Digest: "0123456789ab", Path: filepath.Join(t.TempDir(), "program")}
	var name string
	for i, text := range []string{"#!/bin/sh\n", "#!/bin/sh\nexit 1\n"} {
		if err := os.WriteFile(build.Path, []byte(text), 0o700); err != nil {
			t.Fatal(err)
		}
		iv := invoker(awslambda.Options{Timeout: time.Duration(i+1) * time.Second})
		deployed, err := iv.Deploy(t.Context(), build, 512, aws.Int(i+1))
		if err != nil {
			t.Fatal(err)
		}
		name = deployed.Name
		untagged := awslambda.Where{}.Lambda(quiet(lambdas)) // as of an earlier version
		if _, err := untagged.UntagResource(t.Context(), &lambda.UntagResourceInput{
			Resource: aws.String("arn:aws:lambda:us-east-1:000000000000:function:" + name), TagKeys: []string{"spillway:app"},
		}); err != nil {
			t.Fatal(err)
		}
	}
	iv := invoker(awslambda.Options{})
	if answer, err := iv.Invoke(t.Context(), name, []byte("{}")); err != nil || answer.FunctionError == "" {
		t.Fatalf("got %+v, %v, want the failure of a program that ends at once", answer, err)
	}
	if _, err := iv.List(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := iv.Remove(t.Context(), name); err != nil {
		t.Fatal(err)
	}
}

// quiet is a configuration whose calls are not recorded.
func quiet(config aws.Config) aws.Config {
	config.APIOptions = nil
	return config
}

// statements returns those of a policy, choices by conditions taken.
func statements(t *testing.T, document any) (all []statement) {
	t.Helper()
	list, _ := document.(map[string]any)["Statement"].([]any)
	for _, one := range list {
		if choice, isChoice := one.(map[string]any)["Fn::If"].([]any); isChoice {
			one = choice[1]
		}
		text, err := json.Marshal(one)
		if err != nil {
			t.Fatal(err)
		}
		var s statement
		if err := json.Unmarshal(text, &s); err != nil {
			t.Fatal(err)
		}
		all = append(all, s)
	}
	return all
}

type statement struct {
	Sid, Effect      string
	Action, Resource any
	Condition        map[string]any
}

func (s statement) actions() (all []string) {
	switch action := s.Action.(type) {
	case string:
		all = []string{action}
	case []any:
		for _, one := range action {
			all = append(all, one.(string))
		}
	}
	return all
}

func allowed(all []statement) []string {
	found := map[string]bool{}
	for _, s := range all {
		for _, action := range s.actions() {
			found[action] = true
		}
	}
	return slices.Sorted(maps.Keys(found))
}

// withoutS3 are the operations without those of S3, of which the store of artifacts has more.
func withoutS3(names []string) []string {
	return slices.DeleteFunc(slices.Clone(names), func(name string) bool { return strings.HasPrefix(name, "s3:") })
}

func TestTheCodeCallsWhatItsSourcesSay(t *testing.T) {
	t.Parallel()
	if diff := cmp.Diff(withoutS3(written(t)), withoutS3(called(t))); diff != "" {
		t.Errorf("operations in the sources and not called here (-), or the other way round (+):\n%s", diff)
	}
}

func TestTheEngineMayDoWhatItDoesAndNothingElse(t *testing.T) {
	t.Parallel()
	engine := statements(t, read(t).Resources["EnginePolicy"].Properties["PolicyDocument"])
	operations := append(written(t), called(t)...)
	if _, err := os.Stat(filepath.Join("..", "..", "activities", "artifact", "s3store")); err == nil {
		if diff := cmp.Diff(actionsOf(operations), allowed(engine)); diff != "" {
			t.Errorf("actions (-called +allowed):\n%s", diff)
		}
	} else if diff := cmp.Diff(withoutS3(actionsOf(operations)), withoutS3(allowed(engine))); diff != "" {
		t.Errorf("actions (-called +allowed):\n%s", diff)
	}
	for _, action := range actionsOf(operations) {
		if !slices.Contains(allowed(engine), action) {
			t.Errorf("the code needs %s, which is not allowed", action)
		}
	}
	// Of these AWS lets no resource be named: https://docs.aws.amazon.com/service-authorization/latest/reference/.
	everywhere := []string{"ec2:DescribeSpotPriceHistory", "lambda:ListFunctions", "pricing:GetProducts"}
	for _, s := range engine {
		if s.Effect != "Allow" || s.Resource == nil {
			t.Errorf("%s: got %+v", s.Sid, s)
		}
		for _, action := range s.actions() {
			if strings.Contains(action, "*") || (s.Resource == "*") != slices.Contains(everywhere, action) {
				t.Errorf("%s allows %s on %v", s.Sid, action, s.Resource)
			}
			if action == "iam:PassRole" && s.Condition == nil {
				t.Errorf("%s lets a role be given to any service", s.Sid)
			}
		}
	}
}

func TestFunctionsMayLogAndReadAndWriteArtifacts(t *testing.T) {
	t.Parallel()
	policies, _ := read(t).Resources["FunctionRole"].Properties["Policies"].([]any)
	var all []statement
	for _, policy := range policies {
		if choice, isChoice := policy.(map[string]any)["Fn::If"].([]any); isChoice {
			policy = choice[1]
		}
		all = append(all, statements(t, policy.(map[string]any)["PolicyDocument"])...)
	}
	want := []string{
		"logs:CreateLogGroup", "logs:CreateLogStream", "logs:PutLogEvents", "s3:AbortMultipartUpload",
		"s3:DeleteObject", "s3:GetObject", "s3:ListBucket", "s3:PutObject",
	}
	if diff := cmp.Diff(want, allowed(all)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	for _, s := range all {
		if s.Resource == "*" || s.Sid == "WhatThereIs" && s.Condition == nil {
			t.Errorf("%s: got %v under %v, want only Spillway's own", s.Sid, s.Resource, s.Condition)
		}
		if slices.Contains(s.actions(), "s3:DeleteObject") && !strings.Contains(fmt.Sprint(s.Resource), "/boards/*") {
			t.Errorf("%s lets functions remove more than messages: %v", s.Sid, s.Resource)
		}
	}
}
