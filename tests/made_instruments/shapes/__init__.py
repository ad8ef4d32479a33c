"""What the modules of a case give: shapes, dtypes and bytes."""
