package function

import (
	"cmp"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"maps"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"time"
)

// What every function of a local host shares.
const (
	region  = "us-east-1"
	account = "000000000000"
	latest  = "$LATEST"
)

// Limits of a function: https://docs.aws.amazon.com/lambda/latest/dg/gettingstarted-limits.html.
const (
	minMemoryMB      = 128
	maxMemoryMB      = 10_240
	maxTimeoutS      = 900
	maxVariableBytes = 4 << 10
	maxUnzippedBytes = 262_144_000
	maxUnzippedFiles = 10_000     // directories included; our own limit, as is the next
	maxUnzippedDepth = 64         // directories around a file
	maxUploadBytes   = 70_167_211 // a request with 50 MB of zip in base64
)

// config is what a function is, as it is kept in function.json. Its values are not changed after they are shared.
type config struct {
	Name        string            `json:"name"`
	Description string            `json:"description,omitempty"`
	Role        string            `json:"role,omitempty"`
	Runtime     string            `json:"runtime"`
	Handler     string            `json:"handler"`
	MemoryMB    int               `json:"memory_mb"`
	TimeoutS    int               `json:"timeout_s"`
	Variables   map[string]string `json:"variables,omitempty"`
	CodeSHA256  string            `json:"code_sha256"` // of the zip, in hex
	CodeBytes   int64             `json:"code_bytes"`  // of the zip
	Tags        map[string]string `json:"tags,omitempty"`
	Reserved    *int              `json:"reserved,omitempty"` // concurrency; nil where none is
	Modified    time.Time         `json:"modified"`
}

func (c config) arn() string {
	return "arn:aws:lambda:" + region + ":" + account + ":function:" + c.Name
}

func (c config) timeout() time.Duration { return time.Duration(c.TimeoutS) * time.Second }

// createInput is the body of CreateFunction:
// https://docs.aws.amazon.com/lambda/latest/api/API_CreateFunction.html.
type createInput struct {
	FunctionName  string
	Description   string
	Role          string
	Runtime       string
	Handler       string
	PackageType   string
	MemorySize    *int
	Timeout       *int
	Architectures []string
	Environment   struct{ Variables map[string]string }
	Tags          map[string]string
	Layers        []string
	Code          codeInput
}

// codeInput is the code of a function: a zip, in base64, or where it is otherwise.
type codeInput struct {
	ZipFile  []byte
	S3Bucket string
	S3Key    string
	ImageURI string `json:"ImageUri"`
}

// updateInput is the body of UpdateFunctionCode:
// https://docs.aws.amazon.com/lambda/latest/api/API_UpdateFunctionCode.html.
type updateInput struct {
	codeInput
	Architectures []string
	DryRun        bool
}

// settingsInput is the body of UpdateFunctionConfiguration. A nil field leaves the setting as it is:
// https://docs.aws.amazon.com/lambda/latest/api/API_UpdateFunctionConfiguration.html.
type settingsInput struct {
	Description *string
	Role        *string
	Runtime     *string
	Handler     *string
	MemorySize  *int
	Timeout     *int
	Layers      []string
	Environment *struct{ Variables map[string]string }
}

// apply returns c with the settings of in, or why they cannot be.
func (in settingsInput) apply(c config) (config, error) {
	set(&c.Description, in.Description)
	set(&c.Role, in.Role)
	set(&c.Runtime, in.Runtime)
	set(&c.Handler, in.Handler)
	set(&c.MemoryMB, in.MemorySize)
	set(&c.TimeoutS, in.Timeout)
	if in.Environment != nil {
		c.Variables = in.Environment.Variables
	}
	if len(in.Layers) > 0 {
		return c, errInvalid("layers are not available here: put everything into the zip")
	}
	return c, c.check()
}

// set stores *value, if there is one.
func set[T any](field, value *T) {
	if value != nil {
		*field = *value
	}
}

// config returns the function that in asks for, or why it cannot be. The code is filled in later.
func (in createInput) config() (config, error) {
	c := config{
		Name:        shortName(in.FunctionName),
		Description: in.Description,
		Role:        in.Role,
		Runtime:     in.Runtime,
		Handler:     cmp.Or(in.Handler, "bootstrap"),
		MemoryMB:    minMemoryMB,
		TimeoutS:    3,
		Variables:   in.Environment.Variables,
		Tags:        in.Tags,
	}
	set(&c.MemoryMB, in.MemorySize)
	set(&c.TimeoutS, in.Timeout)
	switch {
	case !isName(c.Name):
		return c, errInvalid("'functionName' %q is not a function name: letters, digits, - and _, at most 64",
			in.FunctionName)
	case in.PackageType != "" && in.PackageType != "Zip":
		return c, errInvalid("package type %q does not run here: deploy a zip", in.PackageType)
	case len(in.Layers) > 0:
		return c, errInvalid("layers are not available here: put everything into the zip")
	}
	if err := in.Code.check(in.Architectures); err != nil {
		return c, err
	}
	if err := checkTags(c.Tags); err != nil {
		return c, err
	}
	return c, c.check()
}

// check refuses settings that are out of range or that this host does not have.
func (c config) check() error {
	if err := c.checkRuntime(); err != nil {
		return err
	}
	switch {
	case c.MemoryMB < minMemoryMB || c.MemoryMB > maxMemoryMB:
		return errInvalid("'MemorySize' value %d failed to satisfy constraint: between %d and %d MB", c.MemoryMB, minMemoryMB,
			maxMemoryMB)
	case c.TimeoutS < 1 || c.TimeoutS > maxTimeoutS:
		return errInvalid("'Timeout' value %d failed to satisfy constraint: between 1 and %d seconds", c.TimeoutS,
			maxTimeoutS)
	}
	return checkVariables(c.Variables)
}

// check refuses code that is elsewhere or for another processor.
func (in codeInput) check(architectures []string) error {
	if in.ImageURI != "" {
		return errInvalid("code in an image does not run here: put the zip into ZipFile")
	}
	for _, a := range architectures {
		if a != architecture() {
			return errInvalid("architecture %q does not run here: build for %q", a, architecture())
		}
	}
	return nil
}

// architecture returns AWS's name of this machine's processor.
func architecture() string {
	if runtime.GOARCH == "amd64" {
		return "x86_64"
	}
	return runtime.GOARCH
}

// reservedVariables are the environment variables that AWS sets itself:
// https://docs.aws.amazon.com/lambda/latest/dg/configuration-envvars.html#configuration-envvars-runtime.
func reservedVariables() []string {
	return []string{
		"_HANDLER", "_X_AMZN_TRACE_ID", "AWS_DEFAULT_REGION", "AWS_REGION", "AWS_EXECUTION_ENV",
		"AWS_LAMBDA_FUNCTION_NAME", "AWS_LAMBDA_FUNCTION_MEMORY_SIZE", "AWS_LAMBDA_FUNCTION_VERSION",
		"AWS_LAMBDA_INITIALIZATION_TYPE", "AWS_LAMBDA_LOG_GROUP_NAME", "AWS_LAMBDA_LOG_STREAM_NAME", "AWS_ACCESS_KEY",
		"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_LAMBDA_RUNTIME_API",
		"LAMBDA_TASK_ROOT", "LAMBDA_RUNTIME_DIR",
	}
}

var variablePattern = regexp.MustCompile(`^[a-zA-Z][a-zA-Z0-9_]+$`)

// checkVariables refuses variables that AWS would refuse, so that what works here works there.
func checkVariables(variables map[string]string) error {
	size := 0
	for _, k := range slices.Sorted(maps.Keys(variables)) {
		v := variables[k]
		size += len(k) + len(v)
		switch {
		case slices.Contains(reservedVariables(), k):
			return errInvalid("Lambda was unable to configure your environment variables because the environment "+
				"variables you have "+
				"provided contains reserved keys that are currently not supported for modification. Reserved keys used in this "+
				"request: %s", k)
		case !variablePattern.MatchString(k), strings.ContainsRune(v, 0):
			return errInvalid("environment variable %q: a name is a letter and then at least one letter, digit or _; a value "+
				"has no zero byte", k)
		}
	}
	if size > maxVariableBytes {
		return errInvalid("Lambda was unable to configure your environment variables because the environment "+
			"variables you have "+
			"provided exceeded the 4KB limit: %d bytes", size)
	}
	return nil
}

var namePattern = regexp.MustCompile(`^[a-zA-Z0-9_-]{1,64}$`)

func isName(s string) bool { return namePattern.MatchString(s) }

// splitName returns the function name and the qualifier in a name, a partial ARN or an ARN:
// name[:qualifier], account:function:name[:qualifier] or arn:aws:lambda:region:account:function:name[:qualifier].
func splitName(s string) (name, qualifier string) {
	if i := strings.Index(s, ":function:"); i >= 0 {
		s = s[i+len(":function:"):]
	}
	name, qualifier, _ = strings.Cut(s, ":")
	return name, qualifier
}

func shortName(s string) string {
	name, _ := splitName(s)
	return name
}

// configuration is how the API describes a function:
// https://docs.aws.amazon.com/lambda/latest/api/API_FunctionConfiguration.html.
type configuration struct {
	FunctionName     string
	FunctionArn      string
	Description      string
	Role             string
	Runtime          string
	Handler          string
	MemorySize       int
	Timeout          int
	CodeSha256       string
	CodeSize         int64
	LastModified     string
	Version          string
	PackageType      string
	Architectures    []string
	State            string
	LastUpdateStatus string
	Environment      *variables `json:",omitempty"`
}

type variables struct{ Variables map[string]string }

func (c config) describe() configuration {
	d := configuration{
		FunctionName:     c.Name,
		FunctionArn:      c.arn(),
		Description:      c.Description,
		Role:             c.Role,
		Runtime:          c.Runtime,
		Handler:          c.Handler,
		MemorySize:       c.MemoryMB,
		Timeout:          c.TimeoutS,
		CodeSha256:       base64SHA256(c.CodeSHA256),
		CodeSize:         c.CodeBytes,
		LastModified:     c.Modified.UTC().Format("2006-01-02T15:04:05.000-0700"),
		Version:          latest,
		PackageType:      "Zip",
		Architectures:    []string{architecture()},
		State:            "Active",
		LastUpdateStatus: "Successful",
	}
	if len(c.Variables) > 0 {
		d.Environment = &variables{c.Variables}
	}
	return d
}

// base64SHA256 returns a digest as AWS writes it. The argument is hex that this package wrote.
func base64SHA256(sum string) string {
	b, err := hex.DecodeString(sum)
	if err != nil {
		panic(fmt.Sprintf("digest %q: %v", sum, err))
	}
	return base64.StdEncoding.EncodeToString(b)
}
