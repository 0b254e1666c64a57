-- Which message a list gives next. A batch runs as long as its longest job, so jobs of like step counts
-- should share one: first the head of the list, then of the next AHEAD batches' worth the most alike.
-- As the head goes first, a job is passed over by at most as many batches as there are jobs before it.
local AHEAD = 4
local MOST = 1e6  -- of anything in a header: anybody may write one, and JSON knows no infinity

-- A number that a message has among its headers, found without opening it.
local function header(message, name)
  local at = string.find(message, '"' .. name .. '"', 1, true)
  local number = at and tonumber(string.match(message, '^": ?(%d+)', at + #name + 1))
  return number and math.min(number, MOST)
end

local function steps_of(message, batch) return header(message, 'steps') or batch.usual end

-- The next messages, the most alike last: those that make the batch no longer before those that do.
local function look_ahead(list, batch)
  local ahead = {}
  for place, message in ipairs(redis.call('LRANGE', list, -AHEAD * batch.pictures, -1)) do
    local more = steps_of(message, batch) - batch.longest
    ahead[place] = {message = message, place = place, waste = more > 0 and MOST + more or -more}
  end
  table.sort(ahead, function(a, b)
    return a.waste > b.waste or (a.waste == b.waste and a.place < b.place)
  end)
  return ahead
end

-- `batch.ahead`: what was looked at, by list; nothing where all was alike so far.
local function draw(list, batch)
  local ahead = batch.ahead[list]
  if ahead and not ahead[1] and steps_of(redis.call('LINDEX', list, -1), batch) ~= batch.longest then
    ahead = look_ahead(list, batch)
  end
  batch.ahead[list] = ahead or {}
  if not ahead or not ahead[1] then return redis.call('RPOP', list) end
  local message = table.remove(ahead).message
  redis.call('LREM', list, -1, message)
  return message
end
