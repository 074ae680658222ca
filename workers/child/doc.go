// Package child runs attempts inside a user's binary: one after another as a slot's process, or as a Lambda function.
package child
