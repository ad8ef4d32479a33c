// Tables that answer: sorted, filtered, searched.
