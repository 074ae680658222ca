// Package aws tests the template that makes what Spillway needs of an AWS account: that it is whole, and that its
// policies allow what the code calls and nothing else.
package aws
