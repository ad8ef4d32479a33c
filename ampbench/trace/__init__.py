"""Why a precision costs and errs what it does: casts, op by op. Torch side."""
